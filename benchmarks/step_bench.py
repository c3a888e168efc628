"""Training steps on made-up clips, timed in turns: what the benchmarks of steps share."""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from multigrid import Batch, Shape, Step, empty_clips
from slowfast_patches.config import check_config, load_config
from slowfast_patches.engine.launch import for_processes, process_device, processes_of
from slowfast_patches.engine.step import Stepper
from slowfast_patches.engine.step_times import device_of
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import Precision
from slowfast_patches.utils.machine import machine, versions

__all__ = [
    "Bench",
    "Case",
    "add_options",
    "load_recipe",
    "prepare_device",
    "provenance",
    "quartiles",
    "time_in_turns",
    "write_result",
]

WARM_UP = 2
"""Iterations of each shape before anything is timed: convolutions are chosen, memory is claimed."""

RATE = 1e-4
"""The learning rate: so low that training on noise leaves the numbers of an ordinary size."""


def load_recipe(path: str | Path, overrides: Sequence[object]) -> CfgNode:
    """A recipe as this run's processes train it, checked.

    Raises:
        ValueError: the recipe cannot train, or wants a GPU where there is none.
    """
    cfg = for_processes(load_config(path, overrides))
    check_config(cfg, processes_of(cfg))
    if device_of(cfg) == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"NUM_GPUS is {cfg.NUM_GPUS} and there is no GPU; NUM_GPUS 0 is the CPU")
    return cfg


def prepare_device(cfg: CfgNode) -> torch.device:
    """The device that a recipe is measured on; convolutions and random numbers are set up."""
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(cfg.RNG_SEED)
    return process_device(cfg, 0)


class Bench:
    """A model and what trains it, timed on one shape after another."""

    def __init__(self, cfg: CfgNode, device: torch.device) -> None:
        self.cfg, self.device = cfg, device
        self.model = build_model(cfg, grouped_bn=True).to(device)
        self.stepper = Stepper(cfg, self.model, device)

    def seconds(self, step: Step, batch: Batch, iterations: int) -> float:
        """Seconds of an iteration, over some of them.

        Raises:
            torch.OutOfMemoryError: the GPU has no room for the shape.
        """
        self.wait()
        start = time.perf_counter()
        for _ in range(iterations):
            self.stepper(step, batch)
        self.wait()
        return (time.perf_counter() - start) / iterations

    def forget(self) -> None:
        """Give back what an iteration that broke off has left behind."""
        self.stepper.optimizer.zero_grad(set_to_none=True)
        self.stepper.precision = Precision(self.cfg, self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def precision_name(self) -> str:
        """What the model computes in: "float32", "bfloat16" or "float16"."""
        with self.stepper.precision.autocast():
            if torch.is_autocast_enabled(self.device.type):
                return str(torch.get_autocast_dtype(self.device.type)).removeprefix("torch.")
        return "float32"

    def wait(self) -> None:
        """Until the GPU has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Case:
    """A shape with its BN size, the clips of one process, and what was measured so far."""

    def __init__(self, bench: Bench, shape: Shape, bn_size: int | None) -> None:
        self.bench, self.shape, self.bn_size = bench, shape, bn_size
        self.clips = shape.batch // processes_of(bench.cfg)
        shared = None if bn_size is None else min(bn_size, self.clips)
        self.step = Step(0, 0, shape, RATE, shared, 0, 0.0)
        self.batch = _made_up_batch(bench.cfg, self.clips, shape)
        self.iterations, self.rounds = 0, list[float]()
        self.failure: str | None = None

    def warm_up(self, seconds: float) -> None:
        """Choose as many iterations a round as take about `seconds`."""
        if self._try(WARM_UP) is not None and (took := self._try(1)) is not None:
            self.iterations = max(1, round(seconds / took))

    def time(self) -> None:
        """One more round."""
        if self.failure is None and (took := self._try(self.iterations)) is not None:
            self.rounds.append(took)

    def _try(self, iterations: int) -> float | None:
        try:
            return self.bench.seconds(self.step, self.batch, iterations)
        except torch.OutOfMemoryError:
            self.failure = "out of memory"
        self.bench.forget()  # here the error no longer holds on to the activations
        return None

    def to_json(self) -> dict[str, Any]:
        """The seconds of an iteration, None with the `failure` where there are none."""
        if self.failure is not None:
            return {"seconds": None, "failure": self.failure}
        return {"seconds": quartiles(self.rounds), "iterations_per_round": self.iterations}


def time_in_turns(cases: Sequence[Case], rounds: int, seconds: float) -> None:
    """Each case once a round, in random order, so that whatever else the machine does falls on all.

    All `rounds` of a case together take about `seconds`, but an iteration a round at least.
    """
    for case in cases:
        case.warm_up(seconds / rounds)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for case in random.sample(cases, len(cases)):
            case.time()


def quartiles(rounds: Sequence[float]) -> dict[str, Any]:
    """The median and quartiles of what the rounds gave, with the rounds."""
    low, median, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return {"median": median, "quartile_1": low, "quartile_3": high, "rounds": list(rounds)}


def provenance(device: torch.device) -> dict[str, Any]:
    """What a result was measured on, with what, and when."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else machine()["processor"]
    return {
        "device": {"type": device.type, "name": name},
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_result(
    path: Path, program: str, argv: Sequence[str] | None, result: dict[str, Any]
) -> None:
    """Write a result as JSON, after the command that made it."""
    command = ["python", f"benchmarks/{program}", *(sys.argv[1:] if argv is None else argv)]
    text = json.dumps({"command": shlex.join(command)} | result, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def _made_up_batch(cfg: CfgNode, clips: int, shape: Shape) -> Batch:
    """Noise, as a loader would hand it over."""
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256)
    flips = torch.rand(clips) < (0.5 if cfg.DATA.RANDOM_FLIP else 0.0)
    tensors = [pixels, _made_up_labels(cfg, clips), flips]
    if cfg.DATA_LOADER.PIN_MEMORY and cfg.NUM_GPUS > 0:
        tensors = [tensor.pin_memory() for tensor in tensors]
    pixels, labels, flips = tensors
    return Batch(clips=pixels, labels=labels, flips=flips, iteration=0, failures=[])


def _made_up_labels(cfg: CfgNode, clips: int) -> Tensor:
    if cfg.DATA.MULTI_LABEL:
        return torch.randint(0, 2, (clips, cfg.MODEL.NUM_CLASSES)).float()
    return torch.randint(0, cfg.MODEL.NUM_CLASSES, (clips,))


def add_options(parser: argparse.ArgumentParser, *, rounds: int, of_each: str) -> None:
    """--rounds, --seconds and the config keys, as every benchmark of steps has them.

    Args:
        rounds: how many there are by default.
        of_each: what the seconds are spent on, in words.
    """
    parser.add_argument(
        "--rounds", type=two_or_more, default=rounds, metavar="N", help="2 or more (%(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        default=20.0,
        metavar="S",
        help=f"time spent on each {of_each}, about, but a step a round at least (%(default)g)",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="config keys to set")


def two_or_more(text: str) -> int:
    if (number := int(text)) < 2:
        raise argparse.ArgumentTypeError(f"quartiles take 2 rounds at least, not {number}")
    return number


def above_zero(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"takes a number above 0, not {text}")
    return number
