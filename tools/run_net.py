r"""Train and test the model of a recipe.

    multigrid-train --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        DATA.PATH_TO_DATA_DIR /data/kinetics NUM_GPUS 8

KEY VALUE pairs after the options replace keys of the recipe. All ways to start a training give the
same result:

  one machine       Run the command above. It starts one process for each of NUM_GPUS GPUs. With
                    NUM_GPUS 0, it trains on the CPU.

  several machines  Run on each machine, with a different --shard-id and the address of the first
                    machine:
                    multigrid-train --cfg ... NUM_GPUS 8 --num-shards 2 --shard-id 0 \
                        --init-method tcp://first-machine:9999

  torchrun          Run on each machine:
                    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \
                        --rdzv-endpoint first-machine:9999 --no-python \
                        multigrid-train --cfg ... NUM_GPUS 8

  srun              Run once, in a SLURM job with one task for each GPU:
                    srun --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 \
                        multigrid-train --cfg ... NUM_GPUS 8
                    With one task on each machine (--ntasks-per-node 1), each task starts one
                    process for each GPU. The rendezvous is on the first machine of the job. To
                    change the port, set --init-method.

  submitit          Run multigrid-submit, which submits a training as a SLURM job.

Exit status:
  0    The training has finished.
  1    The program has a bug, or another rank has failed.
  2    The command or the recipe has a mistake, or the training cannot continue.
  75   A signal has interrupted the training. Repeat the command to resume.
  130  Ctrl-C was pressed before the training started.

torchrun exits with status 1 if a process exits with any status other than 0. With --max-restarts,
torchrun restarts such processes. An interrupted training therefore exits with status 0 under
torchrun --max-restarts.
"""

from __future__ import annotations

import os
import sys
from functools import partial

# By default, torch adds a long C++ stack trace to the error of a lost connection.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early(resumes=True)

from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.train.run import run


@command_line.tool()
def main() -> int:
    parser = command_line.command_parser(__doc__)
    command_line.add_cfg(parser)
    add = partial(command_line.add_option, parser)
    add(
        "--init-method",
        "URL",
        "address of the rendezvous, tcp://HOST:PORT, where HOST is the first machine",
    )
    add("--shard-id", "N", "index of this machine, starting at 0; sets SHARD_ID", int)
    add("--num-shards", "N", "number of machines; sets NUM_SHARDS", int)
    command_line.add_overrides(parser, "keys of the recipe to replace; KEY=VALUE is also accepted")
    args = parser.parse_intermixed_args()
    overrides = list(args.overrides)
    for key, value in (("SHARD_ID", args.shard_id), ("NUM_SHARDS", args.num_shards)):
        if value is not None:
            overrides += [key, str(value)]
    run(load_with_classes(args.cfg, overrides), args.init_method)
    return 0


if __name__ == "__main__":
    sys.exit(main())
