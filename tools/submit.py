r"""Train a recipe as a SLURM job that resumes after preemption and after its time limit.

When it is preempted, and shortly before its time limit, the job saves a checkpoint and is requeued
under the same job ID. The job starts NUM_GPUS processes on each of NUM_SHARDS machines. The
mini-batch has TRAIN.BATCH_SIZE clips per machine. Before the job is submitted, the recipe and all
files that exist on this machine are checked. Example:

    multigrid-submit --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --partition gpu --hours 24 --option account=vision NUM_SHARDS 16 NUM_GPUS 8 \
        DATA.PATH_TO_DATA_DIR /data/kinetics OUTPUT_DIR runs/k400 SOLVER.REFERENCE_BATCH_SIZE 64

With --dry-run, the batch file is printed but not submitted. To resume a job that failed or was
cancelled, repeat the command. KEY VALUE pairs after the options replace keys of the recipe.
"""

import argparse
import sys
from pathlib import Path

from slowfast_patches.launch import slurm_options
from slowfast_patches.utils import command_line


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_line.command_parser(__doc__)
    command_line.add_cfg(parser)
    slurm_options.add_slurm_options(parser, "--partition", required=True)
    text = "check the recipe and print the batch file without submitting it"
    parser.add_argument("--dry-run", action="store_true", help=text)
    command_line.add_overrides(parser, "keys of the recipe to replace")
    return parser


if __name__ == "__main__":
    command_line.start_program()
command_line.answer_help(new_parser)

from slowfast_patches.config.load_recipe import recipe_path
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.experiments import slurm_jobs
from slowfast_patches.launch import slurm
from slowfast_patches.launch.launch import resolve
from slowfast_patches.utils.errors import UserError


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. KEY VALUE pairs may follow any option."""
    parser = new_parser()
    args = parser.parse_intermixed_args(argv)
    args.slurm = slurm.slurm_of(parser, args)
    return args


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Check the recipe, print the batch file or queue the job, and return the exit status."""
    args = parse_args(argv)
    cfg = recipe_path(args.cfg).resolve()
    recipe = load_with_classes(cfg, args.overrides)
    plan, warnings = slurm_jobs.check(load_with_classes(cfg), recipe)
    # With --dry-run, print only the batch file to standard output, so that it can be redirected.
    print(plan, file=sys.stderr if args.dry_run else sys.stdout)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    slurm_jobs.check_resumable(resolve(recipe))
    folder = Path(recipe.output_dir)
    run_net = Path(__file__).resolve().with_name("run_net.py")
    command = [sys.executable, str(run_net), "--cfg", str(cfg), *args.overrides]
    if args.dry_run:
        print(slurm.batch_file(command, recipe, args.slurm, folder / slurm.FOLDER), end="")
        return 0
    queued = slurm.submit({".": (recipe, command)}, folder, args.slurm)
    if not queued:
        raise UserError(f"{folder} already has a queued or running job. See squeue.")
    number = queued["."]
    print(
        f"\nSubmitted job {number}\n"
        f"  status:            squeue --jobs {number}\n"
        f"  log:               {folder / 'train.log'}\n"
        f"  output:            {folder / slurm.FOLDER / f'{number}.out'}\n"
        f"  save and end:      scancel {number}\n"
        f"  save and requeue:  scancel --signal=TERM {number}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
