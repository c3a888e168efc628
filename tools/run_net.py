r"""Train and test a recipe.

    multigrid-train --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        DATA.PATH_TO_DATA_DIR /data/kinetics NUM_GPUS 8

KEY VALUE pairs after the options replace keys of the recipe. There are several ways to start a
training run, and all give the same result:

  one machine       As above. One process per GPU is started. Set NUM_GPUS 0 to train on the CPU.

  several machines  On each machine, with the --shard-id of this machine and the address of the
                    first machine:
                    multigrid-train --cfg ... NUM_GPUS 8 --num-shards 2 --shard-id 0 \
                        --init-method tcp://first-machine:9999

  torchrun          On each machine, with its --node-rank:
                    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 \
                        --master-addr first-machine --master-port 9999 --no-python \
                        multigrid-train --cfg ... NUM_GPUS 8

  srun              Once, in a SLURM job with one task per GPU:
                    srun --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 \
                        multigrid-train --cfg ... NUM_GPUS 8
                    Alternatively use one task per machine (--ntasks-per-node 1), which starts one
                    process per GPU. The rendezvous is on the first machine. To change the port of
                    the rendezvous, use --init-method.

  SLURM, queued     multigrid-submit ... submits the training run as a SLURM job.

Exit status:
  0    The training run has finished.
  1    There is a bug.
  2    The command or the recipe has a mistake, or the training run cannot continue, for example
       because the loss is NaN, a disk is full or a rank was killed.
  75   A signal has interrupted the training run. Repeat the command to resume the run.
  130  Ctrl-C was pressed before the training run began.

torchrun itself exits with 1 if a process exits with any status except 0. Under torchrun
--max-restarts, an interrupted run exits with 0 instead of 75, because torchrun would restart it.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

# Without this setting, torch adds a long C++ call stack to the error about a lost connection.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from slowfast_patches.utils import command_line


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_line.command_parser(__doc__)
    command_line.add_cfg(parser)
    add = partial(command_line.add_option, parser)
    add("--init-method", "URL", "address of the rendezvous: tcp://HOST:PORT of the first machine")
    add("--shard-id", "N", "index of this machine, from 0; sets SHARD_ID", command_line.from_zero)
    add("--num-shards", "N", "number of machines; sets NUM_SHARDS", command_line.at_least_one)
    command_line.add_overrides(parser, "keys of the recipe to replace, also written as KEY=VALUE")
    return parser


if __name__ == "__main__":
    command_line.start_program(resumes=True)
command_line.answer_help(new_parser)

from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.train.run import run


@command_line.tool
def main() -> int:
    args = new_parser().parse_intermixed_args()
    overrides = list(args.overrides)
    for key, value in (("SHARD_ID", args.shard_id), ("NUM_SHARDS", args.num_shards)):
        if value is not None:
            overrides += [key, str(value)]
    run(load_with_classes(args.cfg, overrides), args.init_method)
    return 0


if __name__ == "__main__":
    sys.exit(main())
