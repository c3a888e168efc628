"""Interrupt trainings at random moments, resume them, and compare them with undisturbed trainings.

    python -m tests.faults.kills --minutes 60 --output runs/kills
    python -m tests.faults.kills --processes 3 --cases plain accumulation --endings kill

Trainings of several kinds (CASES), on several numbers of processes, take turns. Each is interrupted
and resumed again and again, until it ends: all processes are killed (-9), some are asked to stop
(SIGTERM), or the disk is full when a checkpoint is saved. Kills and stops come at moments drawn
from the time that an undisturbed training takes. The wall clock of an interrupted training jumps by
up to a year at each call, and so do the modification times of its files between two starts. The
last checkpoint, metrics and result must equal those of the undisturbed training bit for bit. When
the time or the number of interruptions is reached, the last training ends undisturbed.

OUTPUT/summary.json counts interruptions and trainings by number of processes and case. The folder
of a training that differs is kept. The exit status is 1 if any differ.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.models.build_model import build_model
from slowfast_patches.seams import BATCH_TRANSFORMS, CLIP_TRANSFORMS
from slowfast_patches.utils.interruption import INTERRUPTED_STATUS
from tests.conftest import (
    RECIPE,
    Folder,
    assert_same_bits,
    free_port,
    one_block,
    switched_on,
    without_times,
)
from tests.forked import Process, Server
from tests.moving import write_moving_videos

PROGRAM = "tests/faults/faulty_run_net.py"
PLAIN = ("OUTPUT_DIR", "out", "TRAIN.CHECKPOINT_PERIOD", 1, "DATA_LOADER.NUM_WORKERS", 1)
CASES = {
    "plain": (),
    "moving average": ("MODEL.EMA_DECAY", 0.9, "TRAIN.KEEP_BEST", True),
    "augmentation": switched_on(CLIP_TRANSFORMS, BATCH_TRANSFORMS),
    "accumulation": ("SOLVER.ACCUMULATION_STEPS", 2, "SOLVER.CLIP_GRAD_L2NORM", 0.1),
    "mixed precision": ("TRAIN.MIXED_PRECISION", True),
    "frozen": ("TRAIN.FREEZE", ["s1", "s2"], "TRAIN.CHECKPOINT_FILE_PATH", "../start.pyth"),
    "shared BN": (),
}
with suppress(ImportError):  # an extra
    from tests.slowfast_patches.extras.detection.ava_lists import write_moving_boxes
    from tests.slowfast_patches.extras.detection.test_training import KEYS as DETECTION

    CASES["detection"] = (*DETECTION, "DATA.PATH_TO_DATA_DIR", "../ava")
"""Keys by case. All cases train one block in each stage and save after each iteration. In "shared
BN", all processes share each BN group."""
ENDINGS = {
    "kill": {-signal.SIGKILL},
    "stop": {INTERRUPTED_STATUS, -signal.SIGTERM},  # the second before the program handles signals
    "full disk": {2},
}
"""Ways to interrupt a training, and the exit statuses of the processes concerned."""
YEAR = 365 * 86400.0
STOP_SECONDS = 120
"""Seconds after which processes that were asked to stop, or whose disk is full, are killed."""


class Kind(NamedTuple):
    """A kind of training: a case on a number of processes."""

    case: str
    processes: int

    @property
    def name(self) -> str:
        return f"{self.processes} x {self.case}"

    @property
    def keys(self) -> tuple[object, ...]:
        """Keys of the recipe. The number of iterations is about the same for all kinds."""
        is_parted = self.processes == 1 or self.case == "accumulation"
        clips = 4 if is_parted else 2
        batch = clips * self.processes
        size = ("NUM_SHARDS", self.processes, "TRAIN.BATCH_SIZE", clips)
        size += ("SOLVER.MAX_EPOCH", batch, "SOLVER.STEPS", [0, 2 * batch / 3])
        size += ("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 1], [1, 1]], "MULTIGRID.BN_BASE_SIZE", 2)
        if self.case == "shared BN":
            size += ("MULTIGRID.BN_BASE_SIZE", batch, "MULTIGRID.LONG_CYCLE", False)
        return ("DATA.PATH_TO_DATA_DIR", "../data", *PLAIN, *size, *CASES[self.case])


def main(argv: Sequence[str] | None = None) -> int:
    """Kill until the end, print the summary, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="stop after (%(default)s)")
    parser.add_argument("--kills", type=int, default=10**9, help="stop after N of them, if earlier")
    parser.add_argument(
        *("--processes", "-n"), type=int, nargs="+", default=[1, 2, 3], help="(%(default)s)"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES], help="(all)")
    parser.add_argument("--endings", nargs="+", choices=ENDINGS, default=[*ENDINGS], help="(all)")
    parser.add_argument("--seed", type=int, help="of the moments (random)")
    parser.add_argument("--output", type=Path, default=Path("runs/kills"), help="new folder")
    args = parser.parse_args(argv)
    random.seed(args.seed)
    os.environ["OMP_NUM_THREADS"] = "1"
    end = time.monotonic() + 60 * args.minutes
    kinds = [Kind(case, count) for case in args.cases for count in args.processes]
    counts = {kind.name: Counter(same=0, different=0) for kind in kinds}

    def is_over() -> bool:
        interrupted = sum(count[ending] for count in counts.values() for ending in ENDINGS)
        return time.monotonic() > end or interrupted >= args.kills

    server = Server()
    try:
        make_data(args.output)
        seconds = dict[str, float]()
        for number, kind in enumerate(itertools.cycle(kinds)):
            if is_over():
                break
            name = kind.name
            if name not in seconds:
                seconds[name] = undisturbed(server, args.output, kind)
            folder = args.output / f"training_{number:05d}"
            while not is_over():
                ending = random.choice(args.endings)
                if not interrupted(server, folder, kind, ending, seconds[name]):
                    break
                counts[name][ending] += 1
                shift_times(folder / "out")
            else:
                train(server, folder, kind)
            difference = find_difference(folder / "out", args.output / name / "out")
            counts[name]["different" if difference else "same"] += 1
            if difference:
                (folder / "difference.txt").write_text(difference)
            else:
                shutil.rmtree(folder)
            (args.output / "summary.json").write_text(json.dumps(counts, indent=2) + "\n")
    finally:
        server.close()
    print(json.dumps(counts, indent=2))
    return int(any(count["different"] for count in counts.values()))


def make_data(output: Path) -> None:
    """Write the videos to a new folder, and save weights to start from."""
    output.mkdir(parents=True)
    write_moving_videos(output / "data")
    if "detection" in CASES:
        write_moving_boxes(output / "ava")
    (output / "tiny.yaml").write_text(RECIPE)
    with one_block():
        weights = build_model(load_recipe(output / "tiny.yaml")).state_dict()
    torch.save({"model_state": weights}, output / "start.pyth")


def undisturbed(server: Server, output: Path, kind: Kind) -> float:
    """Train without a kill, and return the seconds in which to kill."""
    start = time.monotonic()
    train(server, output / kind.name, kind)
    outcome(output / kind.name / "out")  # raises if the training failed, as said.txt explains
    return 0.7 * (time.monotonic() - start)  # the machine may be less busy later


def train(server: Server, folder: Path, kind: Kind) -> None:
    """Start or resume a training, and wait until it ends."""
    folder.mkdir(exist_ok=True)
    for process in start(server.start, folder, kind):
        process.wait()


def interrupted(server: Server, folder: Path, kind: Kind, ending: str, most: float) -> bool:
    """Start or resume a training, and interrupt it within `most` seconds.

    Return False if the training has ended before, by itself or with an error.
    """
    folder.mkdir(exist_ok=True)
    end = time.monotonic() + random.uniform(0, most)
    fault = f"full:{random.randint(1, 6)}" if ending == "full disk" else "none:0"
    processes = start(server.start, folder, kind, FAULT=fault, JUMPING_CLOCK="1")
    if ending == "full disk":
        wait(processes, time.monotonic() + most + STOP_SECONDS)
    elif wait(processes, end):
        return False
    elif ending == "stop":
        for process in random.sample(processes, random.randint(1, len(processes))):
            process.terminate()
        wait(processes, time.monotonic() + STOP_SECONDS)
    kill(processes)
    statuses = {process.returncode for process in processes}
    return not statuses.isdisjoint(ENDINGS[ending])


def wait(processes: Sequence[Process], end: float) -> bool:
    """Wait for processes until a time of the monotonic clock, and return whether all have ended."""
    try:
        for process in processes:
            process.wait(max(0.0, end - time.monotonic()))
    except TimeoutExpired:
        return False
    return True


def kill(processes: Sequence[Process]) -> None:
    """Kill the processes that are left, in any order."""
    for process in random.sample(processes, len(processes)):
        if process.poll() is not None:
            continue
        time.sleep(random.uniform(0, 0.1))
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its process group yet
                os.kill(process.pid, signal.SIGKILL)
        process.wait()


def shift_times(folder: Path) -> None:
    """Change the modification time of each file by up to a year, as clocks of machines differ."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            when = path.stat().st_mtime + random.uniform(-YEAR, YEAR)
            os.utime(path, (when, when))


def start(
    run: Callable[..., Process], folder: Path, kind: Kind, *keys: object, **environment: str
) -> list[Process]:
    """Start the processes of a training, each in a process group of its own.

    `run` is `Server.start`. `keys` are more keys of the recipe.
    """
    address = f"tcp://127.0.0.1:{free_port()}"
    variables = os.environ | {"ONE_BLOCK": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment
    command = (PROGRAM, "--cfg", "../tiny.yaml", "--init-method", address)
    with (folder / "said.txt").open("a") as said:
        return [
            run(
                *(*command, "--shard-id", rank, *kind.keys, *keys),
                cwd=folder,
                env=variables,
                stderr=said,
            )
            for rank in range(kind.processes)
        ]


def find_difference(found: Path, expected: Path) -> str:
    """Return what differs between the output folders of two trainings, or an empty text."""
    try:
        assert_same_bits(outcome(found), outcome(expected))
    except (AssertionError, OSError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def outcome(path: Path) -> dict[str, object]:
    """Return all that a training leaves, without times."""
    folder = Folder(path)
    of_this_one = ("seconds", "training", "clocks")
    content = {name: v for name, v in folder.checkpoint.items() if name not in of_this_one}
    content["best"], *content["evaluations"] = without_times(
        [content["best"], *content["evaluations"]]
    )
    metric = folder.result["metric"]
    metrics = {kind: without_times(folder.metrics(kind)) for kind in ("train", "val")}
    return content | metrics | {"test": folder.result[metric]}


if __name__ == "__main__":
    sys.exit(main())
