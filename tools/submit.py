"""Train a recipe as a SLURM job that goes on after preemption, time-out and requeueing.

Before its time is up, or when it is preempted, the job saves and queues itself again, under the
same number. It is the run that torchrun would start: NUM_GPUS processes on each of NUM_SHARDS
machines, TRAIN.BATCH_SIZE clips on each machine. What can be checked here is checked before it is
queued. Example:

    multigrid-submit --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --partition gpu --nodes 16 --gpus-per-node 8 --hours 24 --option account=vision \\
        DATA.PATH_TO_DATA_DIR /data/kinetics OUTPUT_DIR runs/k400 SOLVER.REFERENCE_WORLD_SIZE 8

--dry-run prints the batch file instead of submitting it. Run the same command again to go on after
a job that was cancelled or failed. Keys and values after the options replace those of the recipe.
"""

import argparse
import sys
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.config.load import recipe_path
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.launch.slurm import FOLDER, Slurm, batch_file, make_executor
from slowfast_patches.study import jobs


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the KEY VALUE pairs may follow any option."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument("--cfg", type=Path, required=True, metavar="FILE", help="the recipe")
    parser.add_argument("--partition", required=True, metavar="P", help="where the job queues")
    add = parser.add_argument
    add("--nodes", type=int, metavar="N", help="machines (default: the recipe's NUM_SHARDS)")
    text = "of each (default: the recipe's NUM_GPUS)"
    add("--gpus-per-node", type=int, metavar="N", help=text)
    text = "of the job, then requeued (%(default)g)"
    add("--hours", type=float, metavar="H", default=Slurm.hours, help=text)
    text = "cores for each GPU, or for each machine on the CPU (%(default)s)"
    add("--cpus-per-gpu", type=int, metavar="N", default=Slurm.cpus, help=text)
    text = "how often its time may run out, beside preemption (%(default)s)"
    add("--requeues", type=int, metavar="N", default=Slurm.requeues, help=text)
    text = "before its end the job saves; an iteration and a checkpoint must fit (%(default)s)"
    add("--warning-seconds", type=int, metavar="S", default=Slurm.warning_seconds, help=text)
    text = "in the queue (%(default)s)"
    add("--job-name", default="multigrid", metavar="NAME", help=text)
    text = "a further one of sbatch, such as account=vision; give one or more"
    key_value = command_line.key_value
    add("--option", type=key_value, action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "check, print the batch file, submit nothing"
    parser.add_argument("--dry-run", action="store_true", help=text)
    text = "keys to replace"
    command_line.add_overrides(parser, text)
    return parser.parse_intermixed_args(argv)


@command_line.tool()
def main(argv: list[str] | None = None) -> int:
    """Check, then print the batch file or queue the job; returns the exit status."""
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
    # The batch file alone goes to standard output, so that it can be kept.
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
        f"  watch:          squeue --jobs {number}\n"
        f"  its log:        {folder / 'train.log'}\n"
        f"  all it says:    {folder / FOLDER / f'{number}_*_log.out'} and .err\n"
        f"  save, end it:   scancel {number}\n"
        f"  save, requeue:  scancel --signal=TERM {number}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
