"""Train and test a recipe.

    multigrid-train --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        DATA.PATH_TO_DATA_DIR /data/kinetics NUM_GPUS 8

Keys and values after the options replace those of the recipe. Ways to start it, all of which train
the same:

  one machine       the above: a process for each of NUM_GPUS GPUs; NUM_GPUS 0 is the CPU.

  several machines  on each of them, with its own --shard-id, meeting on the first:
                    multigrid-train --cfg ... NUM_GPUS 8 --num-shards 2 --shard-id 0 \\
                        --init-method tcp://first-machine:9999

  torchrun          on each of the machines:
                    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
                        --rdzv-endpoint first-machine:9999 --no-python \\
                        multigrid-train --cfg ... NUM_GPUS 8

  srun              once, in a job of SLURM, with a task for each GPU:
                    srun --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 \\
                        multigrid-train --cfg ... NUM_GPUS 8
                    or with one task a machine (--ntasks-per-node 1), which starts a process for
                    each GPU. The machines meet on the first; --init-method names another port.

  submitit          multigrid-submit ... queues runs as jobs.

Exit status: 0 when done, 2 for a mistake or what stops a training, 75 for one that a signal has
interrupted and that goes on when started again, 130 for Ctrl-C before it began, 1 for a bug or
where another rank failed. torchrun makes 1 of each but 0; with --max-restarts it would start an
interrupted run again at once, so that one ends with 0 there.
"""

from __future__ import annotations

import os
import sys

# Without this torch adds pages of C++ call stack to the error of a lost connection.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early(resumes=True)

from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.train.run import run


@command_line.tool()
def main() -> int:
    parser = command_line.command_parser(__doc__)
    parser.add_argument("--cfg", required=True, metavar="FILE", help="the recipe, a YAML file")
    text = "where the nodes meet: tcp://HOST:PORT of the first"
    parser.add_argument("--init-method", metavar="URL", help=text)
    text = "this node's number: SHARD_ID"
    parser.add_argument("--shard-id", type=int, metavar="N", help=text)
    text = "the number of nodes: NUM_SHARDS"
    parser.add_argument("--num-shards", type=int, metavar="N", help=text)
    command_line.add_overrides(parser, "keys to replace, also as KEY=VALUE")
    args = parser.parse_intermixed_args()
    overrides = list(args.overrides)
    for key, value in (("SHARD_ID", args.shard_id), ("NUM_SHARDS", args.num_shards)):
        if value is not None:
            overrides += [key, str(value)]
    run(load_with_classes(args.cfg, overrides), args.init_method)
    return 0


if __name__ == "__main__":
    sys.exit(main())
