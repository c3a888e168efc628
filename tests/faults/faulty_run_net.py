"""Run tools/run_net.py with faults, which environment variables select.

With FAULT=PLACE:NUMBER, the process kills itself (-9) at the call NUMBER, from 1, of a function. At
the place "full", the disk is full from this call on instead. With FAULTY_RANK, only this rank does
so. With JUMPING_CLOCK, each call of time.time returns a time within a year of now. With ONE_BLOCK,
networks have one block in each stage. A process restarted by torchrun or SLURM has no faults.
"""

import errno
import importlib
import io
import os
import random
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from slowfast_patches import patching
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.tasks.scores import VideoScores
from slowfast_patches.train.step import Stepper

PLACES = {
    "step": (Stepper, "forward_backward"),
    "worker": (ClipDataset, "__getitems__"),
    "save": (torch, "save"),
    "full": (torch, "save"),
    "rename": (Path, "replace"),
    "evaluation": (VideoScores, "add"),
}


def strike() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(place: str, number: int) -> None:
    """Patch a function so that the process dies before the call, or within a step or a write."""
    owner, name = PLACES[place]
    original, calls = getattr(owner, name), 0

    def faulty(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if place == "full" and calls >= number and not isinstance(args[1], io.BytesIO):
            args[1].write(b"half a checkpoint")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if calls == number and place != "full":
            if place == "step":
                threading.Timer(random.uniform(0, 0.1), strike).start()
            elif place == "save":
                original(*args, **options)
                args[1].truncate(args[1].tell() // 2)
                strike()
            else:
                strike()
        return original(*args, **options)

    setattr(owner, name, faulty)


def let_clock_jump() -> None:
    now = time.time
    rng = random.Random()  # not the one that trainings use and store

    def jumping() -> float:
        return now() + rng.uniform(-1, 1) * 365 * 86400

    time.time = jumping
    time.time_ns = lambda: int(1e9 * jumping())


if __name__ == "__main__":
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if "--shard-id" in sys.argv:
        rank = sys.argv[sys.argv.index("--shard-id") + 1]
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    again = any(os.environ.get(name, "0") != "0" for name in counts)
    place, number = os.environ.get("FAULT", "none:0").split(":")
    if place in PLACES and os.environ.get("FAULTY_RANK", rank) == rank and not again:
        install(place, int(number))
    if "JUMPING_CLOCK" in os.environ:
        let_clock_jump()
    if "ONE_BLOCK" in os.environ:
        patching.apply()
        models = importlib.import_module("slowfast.models.video_model_builder")
        models._MODEL_STAGE_DEPTH[50] = (1, 1, 1, 1)
    sys.argv[0] = str(Path(__file__).parents[2] / "tools" / "run_net.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
