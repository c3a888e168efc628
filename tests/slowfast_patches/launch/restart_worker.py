"""What torchrun starts: waits to be killed, outside of any collective, and once more adds up ones.

    python restart_worker.py FOLDER

Each process adds its number to FOLDER/started_RANK, and when started after FOLDER/killed is there
leaves in FOLDER/sum_RANK the sum over the processes.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.launch import launch
from slowfast_patches.utils.distributed import World

FOLDER = Path(sys.argv[1])
DEADLINE = 200


def main(cfg: Recipe, world: World) -> None:
    signal.alarm(DEADLINE)
    again, total = (FOLDER / "killed").exists(), torch.ones(1)
    dist.all_reduce(total)
    with open(FOLDER / f"started_{world.rank}", "a") as file:
        file.write(f"{os.getpid()}\n")
    if not again:
        time.sleep(DEADLINE)
    (FOLDER / f"sum_{world.rank}").write_text(str(int(total)))


if __name__ == "__main__":
    launch(load_recipe(None, ["NUM_GPUS", 0, "DIST_JOIN_SECONDS", 60]), None, main)
