"""Kill trainings at random moments, resume them, and compare them with undisturbed trainings.

    python -m tests.faults.kills --minutes 60 --output runs/kills

Trainings of several kinds take turns (CASES). Each is killed (-9) and resumed again and again, at
moments drawn from the time that an undisturbed training takes, until it ends. Its last checkpoint,
metrics and result must then equal those of the undisturbed training bit for bit. When the time or
the number of kills is reached, the last training ends without further kills.

OUTPUT/summary.json counts kills and trainings by case. The folder of a training that differs is
kept. The exit status is 1 if any differ.
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
from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired

from slowfast_patches.datasets.demo.synthetic import DemoSpec, make_demo_data
from slowfast_patches.detection.demo import make_ava_form
from tests.conftest import RECIPE, Folder, assert_same_bits, free_port, without_times
from tests.forked import Process, Server
from tests.slowfast_patches.detection.test_training import KEYS as DETECTION

PROGRAM = "tests/faults/faulty_run_net.py"
PLAIN = ("OUTPUT_DIR", "out", "TRAIN.CHECKPOINT_PERIOD", 1, "DATA_LOADER.NUM_WORKERS", 1)
CASES = {
    "one process": (),
    "two processes": ("NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2),
    "moving average": ("MODEL.EMA_DECAY", 0.9, "TRAIN.KEEP_BEST", True),
    "augmentation": ("AUG.ENABLE", True, "MIXUP.ENABLE", True),
    "detection": (*DETECTION, "DATA.PATH_TO_DATA_DIR", "../ava"),
}
"""Keys by case. All cases train one block in each stage and save after each iteration."""


def main(argv: Sequence[str] | None = None) -> int:
    """Kill until the end, print the summary, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="stop after (%(default)s)")
    parser.add_argument("--kills", type=int, default=10**9, help="stop after N kills, if earlier")
    parser.add_argument("--output", type=Path, default=Path("runs/kills"), help="new folder")
    args = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    end = time.monotonic() + 60 * args.minutes
    counts = {case: Counter(kills=0, same=0, different=0) for case in CASES}

    def is_over() -> bool:
        killed = sum(count["kills"] for count in counts.values())
        return time.monotonic() > end or killed >= args.kills

    server = Server()
    try:
        make_data(args.output)
        seconds = dict[str, float]()
        for number, case in enumerate(itertools.cycle(CASES)):
            if is_over():
                break
            if case not in seconds:
                seconds[case] = undisturbed(server, args.output, case)
            folder = args.output / f"training_{number:05d}"
            while not finished(server, folder, case, None if is_over() else seconds[case]):
                counts[case]["kills"] += 1
            difference = find_difference(folder / "out", args.output / case / "out")
            counts[case]["different" if difference else "same"] += 1
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
    """Render the videos in a new folder."""
    output.mkdir(parents=True)
    make_demo_data(output / "data", DemoSpec(24, 8, 8, frames=20, width=48, height=40), 1)
    make_ava_form(output / "ava", DemoSpec(12, 4, 0, frames=40, width=64, height=40), 1)
    (output / "tiny.yaml").write_text(RECIPE)


def undisturbed(server: Server, output: Path, case: str) -> float:
    """Train without a kill, and return the seconds in which to kill."""
    start = time.monotonic()
    finished(server, output / case, case, None)
    outcome(output / case / "out")  # raises if the training failed, as said.txt explains
    return 0.7 * (time.monotonic() - start)  # the machine may be less busy later


def finished(server: Server, folder: Path, case: str, most: float | None) -> bool:
    """Start or resume a training, kill it within `most` seconds, and return whether it has ended.

    A training that ends with an error has ended, too. If `most` is None, it is not killed.
    """
    folder.mkdir(exist_ok=True)
    end = None if most is None else time.monotonic() + random.uniform(0, most)
    processes = start(server, folder, case)
    try:
        for process in processes:
            process.wait(None if end is None else max(0.0, end - time.monotonic()))
    except TimeoutExpired:
        for process in random.sample(processes, len(processes)):
            time.sleep(random.uniform(0, 0.1))
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:  # it has not made its process group yet
                    os.kill(process.pid, signal.SIGKILL)
            process.wait()
        return False
    return True


def start(server: Server, folder: Path, case: str) -> list[Process]:
    """Start the processes of a training, each in a process group of its own."""
    keys = ("DATA.PATH_TO_DATA_DIR", "../data", *PLAIN, *CASES[case])
    ranks = 2 if "NUM_SHARDS" in keys else 1
    address = f"tcp://127.0.0.1:{free_port()}"
    environment = os.environ | {"ONE_BLOCK": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = (PROGRAM, "--cfg", "../tiny.yaml", "--init-method", address)
    with (folder / "said.txt").open("a") as said:
        return [
            server.start(
                *(*command, "--shard-id", rank, *keys), cwd=folder, env=environment, stderr=said
            )
            for rank in range(ranks)
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
