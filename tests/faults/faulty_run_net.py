"""tools/run_net.py, except that it is killed where the environment's FAULT says, once.

FAULT is the JSON of `Fault`; its mark is a file that appears just before the kill, and while it is
there nothing is killed any more. STREAM is a file that gets a line for every iteration that a rank
finished: what it trained on, and when.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTED = time.time()
RUN_NET = Path(__file__).parents[2] / "tools" / "run_net.py"


@dataclass(frozen=True)
class Fault:
    """A kill -9.

    kind: "trainer" (one of several processes: "rank"; in a phase's first iteration: "boundary") at
        a moment of an iteration, "worker" of a data loader, "save" in the middle of a checkpoint's
        file, "rename" before it gets its name, "evaluation" at its second mini-batch.
    iteration: in which, or (save, rename, evaluation) in the first after which.
    rank: of the process; others go on.
    delay: seconds after the beginning of the iteration, for a trainer.
    mark: file that says that it happened.
    """

    kind: str
    iteration: int
    rank: int
    delay: float
    mark: str

    def strike(self) -> None:
        """Kill this process, unless that was done already."""
        try:
            with open(self.mark, "x", encoding="utf-8") as file:
                file.write(f"{time.time()}")
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def install(fault: Fault | None, rank: int) -> None:
    """Put the fault, and the record of the stream, around the functions of the trainer."""
    from slowfast_patches.train.step import Stepper

    state = {"iteration": -1}
    original = Stepper.__call__

    def take_step(stepper: Any, step: Any, batch: Any, *rest: Any):
        state["iteration"] = step.iteration
        if fault and fault.kind not in INSTALL and step.iteration == fault.iteration:
            timer = threading.Timer(fault.delay, fault.strike)
            timer.daemon = True
            timer.start()
        outcome = original(stepper, step, batch, *rest)
        outcome.loss.item()
        record(rank, step.iteration, batch)
        return outcome

    Stepper.__call__ = take_step
    if fault is not None and fault.kind in INSTALL:
        INSTALL[fault.kind](fault, state)


def record(rank: int, iteration: int, batch: Any) -> None:
    """A line of STREAM: a digest of all that the iteration's clips are, and the time."""
    digest = hashlib.sha256(batch["clips"].numpy().tobytes())
    digest.update(batch["flips"].numpy().tobytes() + batch["labels"].numpy().tobytes())
    line = {
        "rank": rank,
        "iteration": iteration,
        "clips": digest.hexdigest(),
        "videos": batch["videos"].tolist(),
        "process": os.getpid(),
        "started": STARTED,
        "time": time.time(),
    }
    with open(os.environ["STREAM"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def in_worker(fault: Fault, _: dict[str, int]) -> None:
    from torch.utils.data import get_worker_info

    from slowfast_patches.datasets.clips import ClipDataset

    original = ClipDataset.__getitems__

    def get(self: Any, requests: Any) -> Any:
        here = getattr(requests[0], "iteration", None)
        if here == fault.iteration and get_worker_info() is not None:
            fault.strike()
        return original(self, requests)

    ClipDataset.__getitems__ = get


def in_save(fault: Fault, state: dict[str, int]) -> None:
    import torch

    original = torch.save

    def save(content: Any, file: Any, *rest: Any, **options: Any) -> None:
        if state["iteration"] >= fault.iteration:
            whole = io.BytesIO()
            original(content, whole)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
            fault.strike()
        original(content, file, *rest, **options)

    torch.save = save


def in_rename(fault: Fault, state: dict[str, int]) -> None:
    original = os.replace

    def replace(source: Any, target: Any, **options: Any) -> None:
        if state["iteration"] >= fault.iteration and "checkpoint_iter" in str(target):
            fault.strike()
        original(source, target, **options)

    os.replace = replace
    original_path = Path.replace

    def replace_path(self: Path, target: Any) -> Path:
        if state["iteration"] >= fault.iteration and "checkpoint_iter" in str(target):
            fault.strike()
        return original_path(self, target)

    Path.replace = replace_path  # type: ignore[method-assign]


def in_evaluation(fault: Fault, state: dict[str, int]) -> None:
    from slowfast_patches.train import evaluate

    original = evaluate.evaluation_loader

    def batches(*given: Any) -> Any:
        for number, batch in enumerate(original(*given)):
            if number == 1 and state["iteration"] >= fault.iteration:
                fault.strike()
            yield batch

    evaluate.evaluation_loader = batches


INSTALL = {
    "worker": in_worker,
    "save": in_save,
    "rename": in_rename,
    "evaluation": in_evaluation,
}


def main() -> None:
    text = os.environ.get("FAULT")
    rank = int(os.environ.get("RANK", 0))
    fault = Fault(**json.loads(text)) if text else None
    install(fault if fault and fault.rank == rank else None, rank)
    sys.argv[0] = str(RUN_NET)
    runpy.run_path(str(RUN_NET), run_name="__main__")


if __name__ == "__main__":
    main()
