"""A run whose processes do what they are told: `launch_worker.py FOLDER DEED [KEY VALUE ...]`.

The deed is what rank 1 does while the others wait for it in a collective, or all of them at once.
With SPAWN in the environment its two processes are spawned here, without GPUs.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode

from slowfast_patches.config import load_config
from slowfast_patches.engine.launch import launch, launch_at
from slowfast_patches.engine.logs import setup_logging
from slowfast_patches.engine.stopping import TrainingInterruptedError, TrainingStoppedError
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.placement import Placement

DEEDS = {}


def deed(function):
    DEEDS[function.__name__] = function
    return function


@deed
def mistake():
    raise ValueError("a key of the recipe is wrong")


@deed
def stop():
    raise TrainingStoppedError("the disk is full")


@deed
def bug():
    raise KeyError("no such thing")


@deed
def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@deed
def interrupt():
    """Every rank's: they stop at the same iteration, rank 0 a little later, as it writes."""


@deed
def wait():
    """Every rank's: for longer than any test, whatever the signals."""


def main(cfg: CfgNode, world: World) -> None:
    setup_logging(cfg.OUTPUT_DIR, world)
    name = os.environ["DEED"]
    if name == "interrupt":
        time.sleep(0.0 if world.rank else 1.0)
        (Path(cfg.OUTPUT_DIR) / f"saved_{world.rank}").touch()
        raise TrainingInterruptedError("stopped by a signal after iteration 7")
    if name == "wait":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        (Path(cfg.OUTPUT_DIR) / f"waits_{world.rank}").touch()
        print("waiting", flush=True)
        time.sleep(600)
    if world.rank == 1:
        DEEDS[name]()
    total = torch.ones(1)
    dist.all_reduce(total)
    world.store.set(f"sum_{world.rank}", str(total.item()))
    (Path(cfg.OUTPUT_DIR) / f"sum_{world.rank}").write_text(world.store.get("sum_0").decode())


def check(cfg: CfgNode) -> None:
    if os.environ["DEED"] == "check" and int(os.environ.get("RANK", 0)) == 1:
        raise ValueError("no videos on this machine")


if __name__ == "__main__":
    folder, overrides = sys.argv[1], sys.argv[2:]
    keys = ["NUM_GPUS", 0, "OUTPUT_DIR", folder, *overrides]
    address = os.environ.get("ADDRESS")
    if "SPAWN" in os.environ:
        placement = Placement("run_net", 2, 1, 0, 0, 0, 2, address)
        sys.exit(launch_at(placement, load_config(None, keys), main, check))
    launch(load_config(None, keys), address, main, check)
