r"""Train a recipe as a SLURM job that resumes after preemption and time-out.

Before its time limit, and when it is preempted, the job saves a checkpoint and requeues itself
under the same number. It starts NUM_GPUS processes on each of NUM_SHARDS machines, with
TRAIN.BATCH_SIZE clips on each machine. What can be checked on this machine is checked before the
job is queued. Example:

    multigrid-submit --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --partition gpu --nodes 16 --gpus-per-node 8 --hours 24 --option account=vision \
        DATA.PATH_TO_DATA_DIR /data/kinetics OUTPUT_DIR runs/k400 SOLVER.REFERENCE_WORLD_SIZE 8

With --dry-run, the batch file is printed and not submitted. To resume after a job that failed or
was cancelled, repeat the command. KEY VALUE pairs after the options replace keys of the recipe.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.config.load import recipe_path
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.launch.slurm import FOLDER, Slurm, batch_file, make_executor
from slowfast_patches.study import jobs


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. KEY VALUE pairs may follow any option."""
    parser = command_line.command_parser(__doc__)
    add = partial(command_line.add_option, parser)
    command_line.add_cfg(parser)
    add("--partition", "P", "partition of SLURM", required=True)
    add("--nodes", "N", "number of machines (default: NUM_SHARDS of the recipe)", int)
    add("--gpus-per-node", "N", "GPUs of each machine (default: NUM_GPUS of the recipe)", int)
    text = "time limit of the job, which is then requeued (default: %(default)g)"
    add("--hours", "H", text, float, Slurm.hours)
    text = "CPU cores for each GPU, or for each machine without GPUs (default: %(default)s)"
    add("--cpus-per-gpu", "N", text, int, Slurm.cpus)
    text = "largest number of time-outs; preemptions do not count (default: %(default)s)"
    add("--requeues", "N", text, int, Slurm.requeues)
    text = (
        "time between the signal to save and the time limit; it must be enough for an iteration "
        "and a checkpoint (default: %(default)s)"
    )
    add("--warning-seconds", "S", text, int, Slurm.warning_seconds)
    add("--job-name", "NAME", "name of the job (default: %(default)s)", default="multigrid")
    command_line.add_pairs(parser, "--option")
    text = "check the recipe and print the batch file without submitting it"
    parser.add_argument("--dry-run", action="store_true", help=text)
    command_line.add_overrides(parser, "keys of the recipe to replace")
    return parser.parse_intermixed_args(argv)


@command_line.tool()
def main(argv: list[str] | None = None) -> int:
    """Check the recipe, print the batch file or queue the job, and return the exit status."""
    args = parse_args(argv)
    slurm = Slurm(
        args.partition,
        hours=args.hours,
        cpus=args.cpus_per_gpu,
        requeues=args.requeues,
        warning_seconds=args.warning_seconds,
        options=dict(args.option),
    )
    cfg = recipe_path(args.cfg).resolve()
    pairs = jobs.job_keys(cfg, args.overrides, args.nodes, args.gpus_per_node)
    recipe = load_with_classes(cfg, pairs)
    plan, warnings = jobs.check(load_with_classes(cfg, args.overrides), recipe)
    # With --dry-run, only the batch file goes to standard output, so that it can be redirected.
    print(plan, file=sys.stderr if args.dry_run else sys.stdout)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    folder = Path(recipe.output_dir)
    if args.dry_run:
        machines = (recipe.num_shards, recipe.num_gpus)
        print(batch_file(make_executor(folder / FOLDER, slurm, *machines, args.job_name)))
        return 0
    run_net = Path(__file__).resolve().with_name("run_net.py")
    command = [sys.executable, str(run_net), "--cfg", str(cfg), *pairs]
    number = jobs.submit_recipe(recipe, command, slurm, args.job_name)
    print(
        f"\njob {number} is queued\n"
        f"  status:            squeue --jobs {number}\n"
        f"  log:               {folder / 'train.log'}\n"
        f"  output:            {folder / FOLDER / f'{number}_*_log.out'} and .err\n"
        f"  save and end:      scancel {number}\n"
        f"  save and requeue:  scancel --signal=TERM {number}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
