"""tools/run_net.py, except that it is killed where the environment's FAULT says, once.

FAULT is the JSON of `Fault`. STREAM is a file that gets a line for every iteration that a rank
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
from collections.abc import Callable, Iterable, Iterator
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
    mark: file that appears just before the kill; while it is there nothing is killed any more.
    """

    kind: str
    iteration: int
    rank: int
    delay: float
    mark: str

    def strike(self) -> None:
        """Kill this process, unless that was done already."""
        try:
            Path(self.mark).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def install(fault: Fault | None, rank: int) -> None:
    """Put the fault, and the record of the stream, around what a training calls."""
    import torch

    from slowfast_patches.datasets.clips import ClipDataset
    from slowfast_patches.launch.stopping import StopRequest
    from slowfast_patches.train.step import Stepper

    at = {"iteration": -1}

    def has_come(kind: str) -> bool:
        return fault is not None and fault.kind == kind and at["iteration"] >= fault.iteration

    def around(owner: Any, name: str, wrapped: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **keys: wrapped(original, *args, **keys))

    def take_step(step_with: Any, stepper: Any, step: Any, batch: Any, *rest: Any) -> Any:
        at["iteration"] = step.iteration
        in_step = fault is not None and fault.kind in ("trainer", "boundary", "rank")
        if in_step and step.iteration == fault.iteration:
            timer = threading.Timer(fault.delay, fault.strike)
            timer.daemon = True
            timer.start()
        outcome = step_with(stepper, step, batch, *rest)
        outcome[0].item()
        record(rank, step.iteration, batch)
        return outcome

    def get(read: Any, dataset: Any, requests: Any) -> Any:
        here = getattr(requests[0], "iteration", None)
        in_worker = torch.utils.data.get_worker_info() is not None
        if fault is not None and fault.kind == "worker" and here == fault.iteration and in_worker:
            fault.strike()
        return read(dataset, requests)

    def save(write: Any, content: Any, file: Any, *rest: Any, **options: Any) -> None:
        if has_come("save"):
            whole = io.BytesIO()
            write(content, whole)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
            fault.strike()
        write(content, file, *rest, **options)

    def replace(rename: Any, path: Path, target: Any) -> Path:
        if has_come("rename") and "checkpoint_iter" in str(target):
            fault.strike()
        return rename(path, target)

    def between(pass_on: Any, stop: Any, batches: Iterable[Any], rounds: int) -> Iterator[Any]:
        for number, batch in enumerate(pass_on(stop, batches, rounds)):
            if number == 1 and has_come("evaluation"):
                fault.strike()
            yield batch

    around(Stepper, "__call__", take_step)
    around(ClipDataset, "__getitems__", get)
    around(torch, "save", save)
    around(Path, "replace", replace)
    around(StopRequest, "between", between)


def record(rank: int, iteration: int, batch: Any) -> None:
    """A line of STREAM: a digest of all that the iteration's clips are, and the time."""
    digest = hashlib.sha256()
    for name in ("clips", "flips", "labels"):
        digest.update(batch[name].numpy().tobytes())
    line = {
        "rank": rank,
        "iteration": iteration,
        "clips": digest.hexdigest(),
        "process": os.getpid(),
        "seconds": time.time() - STARTED,
    }
    with open(os.environ["STREAM"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    text, rank = os.environ.get("FAULT"), int(os.environ.get("RANK", 0))
    fault = Fault(**json.loads(text)) if text else None
    install(fault if fault and fault.rank == rank else None, rank)
    sys.argv[0] = str(RUN_NET)
    runpy.run_path(str(RUN_NET), run_name="__main__")
