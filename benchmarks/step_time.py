"""Seconds of a training iteration at every shape of a recipe's schedule, on this machine.

    python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output demo_steps.json
    python tools/plan.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --dataset-size 640 \\
        --step-times demo_steps.json

Made-up clips go the way that training sends them: normalised and packed, forward, loss, backward,
optimizer, in the recipe's precision, with the recipe's BN at each shape. The baseline's shape is
measured with the baseline's BN too. One process does the work of one of the recipe's NUM_GPUS ×
NUM_SHARDS: its share of the clips. What processes say to each other is not measured, nor is
loading; one GPU is enough. NUM_GPUS 0 measures the CPU.

Every round times each shape once, in random order, so that whatever else the machine does falls on
all of them. A shape that does not fit into the GPU's memory is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from multigrid import Batch, Shape, Step, empty_clips
from slowfast_patches import patching
from slowfast_patches.config import check_config, load_config
from slowfast_patches.engine.launch import for_processes, process_device, processes_of
from slowfast_patches.engine.step import train_step
from slowfast_patches.engine.step_times import FORMAT, device_of, model_of, shapes_to_measure
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision, build_optimizer, loss_function
from slowfast_patches.utils.machine import machine, versions
from slowfast_patches.utils.report import format_table

__all__ = ["Bench", "main", "measure"]

WARM_UP = 2
"""Iterations of each shape before anything is timed: convolutions are chosen, memory is claimed."""

RATE = 1e-4
"""The learning rate: so low that training on noise leaves the numbers of an ordinary size."""


class Bench:
    """A model and what trains it, timed on one shape after another."""

    def __init__(self, cfg: CfgNode, device: torch.device) -> None:
        self.cfg, self.device = cfg, device
        self.model = build_model(cfg, grouped_bn=True).to(device)
        self.optimizer = build_optimizer(cfg, self.model)
        self.transform = InputTransform.from_config(cfg, device)
        self.precision = Precision(cfg, device)
        self.loss_function = loss_function(cfg)

    def seconds(self, step: Step, batch: Batch, iterations: int) -> float:
        """Seconds of an iteration, over some of them.

        Raises:
            torch.OutOfMemoryError: the GPU has no room for the shape.
        """
        self._wait()
        start = time.perf_counter()
        for _ in range(iterations):
            train_step(
                self.cfg,
                self.model,
                self.optimizer,
                step,
                batch,
                transform=self.transform,
                precision=self.precision,
                loss_function=self.loss_function,
            )
        self._wait()
        return (time.perf_counter() - start) / iterations

    def forget(self) -> None:
        """Give back what an iteration that broke off has left behind."""
        self.optimizer.zero_grad(set_to_none=True)
        self.precision = Precision(self.cfg, self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def precision_name(self) -> str:
        """What the model computes in: "float32", "bfloat16" or "float16"."""
        with self.precision.autocast():
            if torch.is_autocast_enabled(self.device.type):
                return str(torch.get_autocast_dtype(self.device.type)).removeprefix("torch.")
        return "float32"

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Case:
    """A shape with its BN size, the clips of one process, and what was measured so far."""

    def __init__(self, cfg: CfgNode, shape: Shape, bn_size: int | None) -> None:
        self.shape, self.bn_size = shape, bn_size
        self.clips = shape.batch // processes_of(cfg)
        shared = None if bn_size is None else min(bn_size, self.clips)
        self.step = Step(0, 0, shape, RATE, shared, 0, 0.0)
        self.batch = _made_up_batch(cfg, self.clips, shape)
        self.iterations, self.rounds = 0, list[float]()
        self.failure: str | None = None

    def warm_up(self, bench: Bench, seconds: float) -> None:
        """Choose as many iterations a round as take about `seconds`."""
        if self._try(bench, WARM_UP) is not None and (took := self._try(bench, 1)) is not None:
            self.iterations = max(1, round(seconds / took))

    def time(self, bench: Bench) -> None:
        if self.failure is None and (took := self._try(bench, self.iterations)) is not None:
            self.rounds.append(took)

    def _try(self, bench: Bench, iterations: int) -> float | None:
        try:
            return bench.seconds(self.step, self.batch, iterations)
        except torch.OutOfMemoryError:
            self.failure = "out of memory"
        bench.forget()  # here the error no longer holds on to the activations
        return None

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "shape": [self.shape.batch, self.shape.frames, self.shape.crop],
            "local_clips": self.clips,
            "bn_size": self.bn_size,
            "seconds": None,
        }
        if self.failure is not None:
            return row | {"failure": self.failure}
        low, median, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        spread = {"median": median, "quartile_1": low, "quartile_3": high, "rounds": self.rounds}
        return row | {"seconds": spread, "iterations_per_round": self.iterations}


def measure(cfg: CfgNode, rounds: int, seconds: float) -> dict[str, Any]:
    """The time of each shape, over `rounds` rounds that together take about `seconds` of each."""
    device = process_device(cfg, 0)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(cfg.RNG_SEED)
    bench = Bench(cfg, device)
    cases = [Case(cfg, shape, bn_size) for shape, bn_size in shapes_to_measure(cfg)]
    for case in cases:
        case.warm_up(bench, seconds / rounds)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for case in random.sample(cases, len(cases)):
            case.time(bench)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else machine()["processor"]
    return {
        "format": FORMAT,
        "device": {"type": device.type, "name": name},
        "precision": bench.precision_name(),
        "processes": processes_of(cfg),
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": model_of(cfg),
        "shapes": [case.to_json() for case in cases],
    }


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


def format_result(result: dict[str, Any]) -> str:
    """A table of the shapes, and what they were measured on."""
    rows = []
    for row in result["shapes"]:
        spread = row["seconds"]
        cells = (
            [row["failure"], "", ""]
            if spread is None
            else [f"{spread[key]:.4f}" for key in ("median", "quartile_1", "quartile_3")]
        )
        bn_size = "batch" if row["bn_size"] is None else str(row["bn_size"])
        rows.append([str(Shape(*row["shape"])), str(row["local_clips"]), bn_size, *cells])
    headers = ["shape", "clips here", "BN clips", "s per iteration", "quartile 1", "quartile 3"]
    return (
        f"{format_table(headers, rows)}\n\n{result['device']['name']}, {result['precision']}, "
        f"{result['machine']['threads']} CPU threads; one process of {result['processes']}, "
        "without loading, evaluation, and communication between processes"
    )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", required=True, metavar="FILE", help="the recipe, a YAML file")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="for tools/plan.py")
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="N", help="2 or more (%(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="time spent on each shape, about, but an iteration a round at least (%(default)g)",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="config keys to set")
    args = parser.parse_intermixed_args(argv)
    if args.rounds < 2:
        parser.error("--rounds: quartiles take 2 rounds at least")
    if not 0 < args.seconds < float("inf"):
        parser.error("--seconds takes a number above 0")
    return args


def main(argv: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = parse_args(argv)
    try:
        patching.apply()
        cfg = for_processes(load_config(args.cfg, args.overrides))
        check_config(cfg, processes_of(cfg))
        if device_of(cfg) == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"NUM_GPUS is {cfg.NUM_GPUS} and there is no GPU; NUM_GPUS 0 is the CPU"
            )
        check_shapes(cfg, [shape for shape, _ in shapes_to_measure(cfg)])
        result = measure(cfg, args.rounds, args.seconds)
        print(format_result(result))
        if args.output:
            command = [
                "python",
                "benchmarks/step_time.py",
                *(sys.argv[1:] if argv is None else argv),
            ]
            text = json.dumps({"command": shlex.join(command)} | result, indent=2)
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(text + "\n", encoding="utf-8")
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
