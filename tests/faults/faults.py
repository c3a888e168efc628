"""Kill trainings with kill -9 at random moments, continue them, and compare with undisturbed ones.

    python tests/faults/faults.py --kills 50 --seed 0 --output runs/faults --json faults.json

A tiny recipe (recipe.yaml) is trained with one process and, under torchrun, with two; one to three
faults strike each training. With one process it is started again by hand; torchrun starts its
processes again by itself (--max-restarts). Each must end as the undisturbed training did: the same
weights and optimizer state bit for bit, the same evaluations, every iteration trained on the same
clips, none left out, and no temporary or damaged file left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from faulty_run_net import Fault
from tabulate import tabulate

from slowfast_patches.datasets.demo.synthetic import DemoSpec, make_demo_data
from slowfast_patches.utils.machine import machine, versions

HERE = Path(__file__).parent
SPEC = DemoSpec(train=24, val=16, test=8, frames=20, width=48, height=40)
LIMIT = 600.0
"""Seconds that a training may take before it counts as hanging."""
KINDS = ("trainer", "boundary", "worker", "save", "rename", "evaluation", "rank")
TIMES = ("clips_per_second", "loading_share", "seconds", "seconds_left", "worst_loading_share")


@dataclass(frozen=True)
class Training:
    """One training of the recipe with `processes` processes, in a folder of its own."""

    folder: Path
    data: Path
    processes: int

    @property
    def output(self) -> Path:
        return self.folder / "run"

    @property
    def stream(self) -> Path:
        return self.folder / "stream.jsonl"

    def run(self, fault: Fault | None = None, restarts: int = 0) -> tuple[int, str]:
        """Train, or train on, until the end or the fault; the exit status and what was said."""
        self.folder.mkdir(parents=True, exist_ok=True)
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(self.processes), "--max-restarts", str(restarts)]
        keys = ["DATA.PATH_TO_DATA_DIR", self.data, "OUTPUT_DIR", self.output]
        command = [sys.executable, *(launcher if self.processes > 1 else [])]
        command += [str(HERE / "faulty_run_net.py"), "--cfg", str(HERE / "recipe.yaml")]
        settings = {"STREAM": str(self.stream), "OMP_NUM_THREADS": "1"}
        if fault is not None:
            settings["FAULT"] = json.dumps(asdict(fault))
        process = subprocess.run(
            [*command, *map(str, keys)],
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
        )
        return process.returncode, process.stderr

    def lines(self) -> list[dict[str, Any]]:
        """What each rank trained on, iteration by iteration, repetitions included."""
        return [json.loads(line) for line in self.stream.read_text("utf-8").splitlines()]


@dataclass(frozen=True)
class Outcome:
    """What came of one training that faults struck; `wrong` is empty where all is as it should."""

    faults: tuple[Fault, ...]
    wrong: tuple[str, ...]


def strike(training: Training, faults: Sequence[Fault]) -> list[str]:
    """Train with one fault after another, then to the end; what went wrong on the way."""
    wrong = []
    for fault in faults:
        status, said = training.run(fault, restarts=1 if training.processes > 1 else 0)
        if not Path(fault.mark).exists():
            wrong.append(f"{fault} did not strike")
        elif training.processes > 1 and status != 0:
            wrong.append(f"torchrun did not recover from {fault}: {status}, {said[-500:]}")
        elif training.processes == 1 and (status == 0 or "Traceback" in said):
            wrong.append(f"{fault} ended with {status}: {said[-500:]}")
    if training.processes == 1:
        status, said = training.run()
        if status != 0:
            wrong.append(f"did not go on: {status}, {said[-500:]}")
    return wrong


def differences(found: Training, expected: Training) -> list[str]:
    """Where a finished training differs from the undisturbed one."""
    folders = (found.output, expected.output)
    paths = [max((f / "checkpoints").glob("checkpoint_iter_*.pyth")) for f in folders]
    ours, theirs = (torch.load(path, weights_only=True) for path in paths)
    wrong = [
        f"{part} differs"
        for part in ("model_state", "optimizer_state", "iteration")
        if not _same(ours[part], theirs[part])
    ]
    wrong += ["evaluations differ"] * (_result(folders[0]) != _result(folders[1]))
    wrong += _stream_differences(found.lines(), expected.lines())
    lines = (found.output / "metrics.jsonl").read_text("utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["type"] == "train"]
    numbers = [record["iteration"] for record in records]
    if numbers != list(range(1, ours["iteration"] + 1)):
        wrong.append("metrics.jsonl leaves out or repeats iterations")
    allowed = {path.relative_to(expected.output) for path in expected.output.rglob("*")}
    left = {path.relative_to(found.output) for path in found.output.rglob("*")} - allowed
    strange = sorted(str(path) for path in left if "tfevents" not in path.name)
    return [*wrong, *(f"left behind: {name}" for name in strange)]


def _stream_differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """Clips lost, repeated or changed: each iteration counts as it was trained last."""
    expected, final = (
        {(line["rank"], line["iteration"]): line["clips"] for line in lines}
        for lines in (theirs, ours)
    )
    wrong = [f"clips of {k} differ" for k in expected | final if expected.get(k) != final.get(k)]
    runs: dict[tuple[int, int], list[int]] = {}
    for line in ours:
        runs.setdefault((line["rank"], line["process"]), []).append(line["iteration"])
    for (rank, _), iterations in runs.items():
        if iterations != list(range(iterations[0], iterations[0] + len(iterations))):
            wrong.append(f"rank {rank} left out or repeated iterations: {iterations}")
    return wrong


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, torch.Tensor):
        return torch.equal(ours, theirs)
    return bool(ours == theirs)


def _result(output: Path) -> Any:
    result = json.loads((output / "result.json").read_text("utf-8"))
    evaluations = [{k: v for k, v in e.items() if k not in TIMES} for e in result["evaluations"]]
    return evaluations, result["top1"], result["iterations"], result["clips"]


def seconds_to_first_iteration(folder: Path) -> dict[str, float | None]:
    """Median seconds from the start of a process to its first finished iteration, in the trainings
    of one process: of their first processes, and of those that continued."""
    fresh, continued = list[float](), list[float]()
    for path in sorted(folder.glob("trial_*/stream.jsonl")):
        lines, first = Training(path.parent, folder, 1).lines(), dict[int, float]()
        for line in lines:
            first.setdefault(line["process"], line["seconds"])
        if {line["rank"] for line in lines} == {0}:
            one, *others = first.values()
            fresh.append(one)
            continued += others
    return {
        "fresh start": statistics.median(fresh) if fresh else None,
        "continued": statistics.median(continued) if continued else None,
    }


def draw(rng: random.Random, kind: str, boundaries: Sequence[int], mark: Path) -> Fault:
    """A fault of a kind at a random moment; `boundaries` are the first iterations of phases, and
    the last the end of the training."""
    if kind == "boundary":
        return Fault(kind, rng.choice(boundaries[1:-1]), 0, rng.uniform(0, 0.02), str(mark))
    rank = rng.randrange(2) if kind == "rank" else 0
    return Fault(kind, rng.randrange(1, boundaries[-1] - 1), rank, rng.uniform(0, 0.3), str(mark))


def boundaries_of(output: Path) -> list[int]:
    """First iterations of the phases of a finished run, and its end."""
    plan = json.loads((output / "plan.json").read_text("utf-8"))
    return [*(phase["start"] for phase in plan["phases"]), plan["iterations"]]


def make_reference(folder: Path, data: Path, processes: int) -> Training:
    """The undisturbed training."""
    training = Training(folder / f"undisturbed_{processes}", data, processes)
    if not (training.output / "result.json").exists():
        status, said = training.run()
        if status != 0:
            raise RuntimeError(f"the undisturbed training failed: {said}")
    return training


def campaign(folder: Path, kills: int, seed: int, kinds: Sequence[str] = KINDS) -> list[Outcome]:
    """Strike `kills` times, in trainings of one to three faults each."""
    folder.mkdir(parents=True, exist_ok=True)
    data, rng = folder / "data", random.Random(seed)
    make_demo_data(data, SPEC, 1)
    sizes = {2 if kind == "rank" else 1 for kind in kinds}
    references = {size: make_reference(folder, data, size) for size in sizes}
    outcomes = []
    for number, group in enumerate(_group(kills, kinds, rng)):
        reference = references[2 if group == ["rank"] else 1]
        outcomes.append(_trial(folder / f"trial_{number:02d}", reference, group, rng))
        print(_describe(number, outcomes[-1]), flush=True)
    return outcomes


def _group(kills: int, kinds: Sequence[str], rng: random.Random) -> list[list[str]]:
    """Kinds of faults for one training after another: each kind as often, ranks on their own."""
    order = [kinds[n % len(kinds)] for n in range(kills)]
    rng.shuffle(order)
    groups = [[kind] for kind in order if kind == "rank"]
    others = [kind for kind in order if kind != "rank"]
    while others:
        count = rng.randint(1, 3)
        groups.append(others[:count])
        others = others[count:]
    rng.shuffle(groups)
    return groups


def _trial(folder: Path, reference: Training, kinds: Sequence[str], rng: random.Random) -> Outcome:
    starts = boundaries_of(reference.output)
    marks = [folder / f"struck_{n}" for n in range(len(kinds))]
    faults = [draw(rng, kind, starts, mark) for kind, mark in zip(kinds, marks, strict=True)]
    faults.sort(key=lambda fault: fault.iteration)
    training = Training(folder, reference.data, reference.processes)
    wrong = strike(training, faults)
    if not wrong:
        wrong = differences(training, reference)
    return Outcome(tuple(faults), tuple(wrong))


def _describe(number: int, outcome: Outcome) -> str:
    faults = ", ".join(f"{f.kind}@{f.iteration} rank {f.rank}" for f in outcome.faults)
    return f"{time.strftime('%H:%M:%S')} training {number}: {faults}: " + (
        "; ".join(outcome.wrong) or "as if undisturbed"
    )


def report(outcomes: Sequence[Outcome], seed: int, folder: Path) -> dict[str, Any]:
    """The campaign in numbers."""
    kinds: Counter[str] = Counter(f.kind for o in outcomes for f in o.faults)
    failed = Counter(f.kind for o in outcomes if o.wrong for f in o.faults)
    return {
        "seed": seed,
        "kills": sum(kinds.values()),
        "recoveries": sum(len(o.faults) for o in outcomes if not o.wrong),
        "kinds": {kind: {"kills": n, "failed": failed[kind]} for kind, n in kinds.items()},
        "wrong": [wrong for o in outcomes for wrong in o.wrong],
        "seconds_to_first_iteration": seconds_to_first_iteration(folder),
        "trainings": [
            {"faults": [asdict(f) | {"mark": ""} for f in o.faults], "wrong": list(o.wrong)}
            for o in outcomes
        ],
        "machine": machine(),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=f"of {KINDS}"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    outcomes = campaign(args.output, args.kills, args.seed, args.kinds)
    result = report(outcomes, args.seed, args.output)
    rows = [(kind, row["kills"], row["failed"]) for kind, row in result["kinds"].items()]
    print(tabulate(rows, headers=["kill of, or in", "kills", "of them not recovered"]))
    print(f"{result['kills']} kills, {result['recoveries']} recoveries, seed {args.seed}")
    print(f"median seconds to the first iteration: {result['seconds_to_first_iteration']}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if result["recoveries"] == result["kills"] else 1


if __name__ == "__main__":
    sys.exit(main())
