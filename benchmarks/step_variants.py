"""Ways to take the same step: each switch alone, all of them, none, and the host's own code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from step_bench import Bench, Case, Steps, build_training_model
from step_host import HostBench, HostModels, host_problem
from torch import nn

from multigrid import Batch
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_speed_of_schedule, schedule_of
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.plan.step_times import MANY_VIDEOS, shapes_to_measure
from slowfast_patches.train.made_up import made_up_batch

__all__ = [
    "EACH",
    "HOST",
    "NAMES",
    "SWITCHES",
    "Run",
    "build_runs",
    "can_compile",
    "variant_config",
]

Keys = Mapping[str, object]

SWITCHES: Mapping[str, tuple[str, object]] = {
    "mixed_precision": ("TRAIN.MIXED_PRECISION", True),
    "tf32": ("TRAIN.TF32", True),
    "cudnn_benchmark": ("TRAIN.CUDNN_BENCHMARK", True),
    "channels_last": ("MODEL.CHANNELS_LAST", True),
    "fused": ("SOLVER.FUSED", True),
    "compile": ("TRAIN.COMPILE", True),
    "cuda_graphs": ("TRAIN.CUDA_GRAPHS", True),
}
"""What makes steps faster, each with its key and the value that turns it on."""

_OTHERS: Mapping[str, tuple[str, object]] = {
    "act_checkpoint": ("MODEL.ACT_CHECKPOINT", True),
    "size_divisor": ("MULTIGRID.SIZE_DIVISOR", 16),
}
"""What saves memory, or changes the shapes: measured alone only."""

_OFF: Keys = {key: False for key, _ in SWITCHES.values()} | {
    "MODEL.ACT_CHECKPOINT": False,
    "MULTIGRID.SIZE_DIVISOR": 1,
    "TRAIN.DETERMINISTIC": False,
}

HOST = ("host", "host_tf32")
EACH = ("plain", *SWITCHES, *_OTHERS, "all", *HOST)
NAMES = ("recipe", *EACH)


def variant_config(recipe: Recipe, name: str, device: torch.device) -> tuple[Recipe, Keys]:
    """The recipe with a variant's switches, and the keys that are set for it.

    Raises:
        ValueError: the device, or the recipe, cannot have it; says why.
    """
    if name == "recipe":
        return recipe, {}
    if name == "all":
        keys = _all_possible(recipe, device)
        return recipe.replaced(keys), keys
    keys = dict(_OFF)
    if name in HOST:
        keys["TRAIN.TF32"] = name == "host_tf32"
        _refuse(host_problem(recipe))
    elif name != "plain":
        key, value = (SWITCHES | _OTHERS)[name]
        keys[key] = value
    changed = recipe.replaced(keys)
    _refuse(_problem(changed, keys, device))
    return changed, keys


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)


def _all_possible(recipe: Recipe, device: torch.device) -> Keys:
    """Every switch that the device and the recipe can have with those before it."""
    keys: dict[str, object] = {}
    for key, value in SWITCHES.values():
        more = keys | {key: value}
        if _problem(recipe.replaced(more), {key: value}, device) is None:
            keys = more
        else:
            keys[key] = False
    return keys


def _problem(recipe: Recipe, keys: Keys, device: torch.device) -> str | None:
    """Why a device or a recipe cannot have the keys that are turned on; None if it can."""
    on = {key for key, value in keys.items() if value is True}
    for key in ("TRAIN.TF32", "TRAIN.CUDNN_BENCHMARK"):
        if key in on and device.type == "cpu":
            return f"{key} is for GPUs, and this is the CPU"
    if "TRAIN.TF32" in on and not has_tf32(device):
        return f"TRAIN.TF32 takes a newer GPU than {torch.cuda.get_device_name(device)}"
    try:
        _check(recipe, keys)
    except ValueError as error:
        return str(error)
    if "TRAIN.COMPILE" in on and (problem := can_compile(device)) is not None:
        return f"TRAIN.COMPILE does not work here: {problem}"
    return None


def _check(recipe: Recipe, keys: Keys) -> None:
    """Raise ValueError if a training with these keys would be refused."""
    processes = processes_of(recipe)
    check_recipe(recipe, processes)
    if keys.get("MULTIGRID.SIZE_DIVISOR", 1) != 1:
        check_shapes(recipe, [shape for shape, _ in shapes_to_measure(recipe)])
    if keys.get("TRAIN.COMPILE", False):
        check_speed_of_schedule(recipe, schedule_of(recipe, MANY_VIDEOS), processes)


def can_compile(device: torch.device) -> str | None:
    """Why torch.compile makes no code for a device; None where it does."""
    try:
        torch.compile(lambda x: 2 * x + 1)(torch.zeros(8, device=device))
    except Exception as error:  # of whatever compiler is missing, or broken
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


@dataclass
class Run:
    """A variant of the recipe that is measured: a case for each shape, or why there is none.

    `keys` are those that differ from the recipe's.
    """

    name: str
    recipe: Recipe
    keys: Keys = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    failure: str | None = None

    @property
    def precision(self) -> str:
        """What it computes products in: "float32", "tf32", "bfloat16" or "float16"."""
        bench = self.cases[0].bench
        name = bench.precision_name()
        rounds = self.recipe.train.tf32 and has_tf32(bench.device)
        return "tf32" if name == "float32" and rounds else name


def has_tf32(device: torch.device) -> bool:
    """Whether a device can round the factors of float32 products: GPUs since Ampere can."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def build_runs(
    recipe: Recipe,
    names: Sequence[str],
    device: torch.device,
    *,
    named: Collection[str] = (),
    build: Callable[[Recipe], nn.Module] = build_training_model,
) -> list[Run]:
    """What is measured for some variants of a recipe, on the same made-up clips.

    Args:
        named: variants to refuse where they cannot be; others are reported as what they are.
        build: gives the model of all but the host's.

    Raises:
        ValueError: the device or the recipe cannot have a variant; says why.
    """
    batches: dict[tuple[int, ...], Batch] = {}
    models: HostModels | None = None
    runs = list[Run]()
    for name in names:
        try:
            changed, keys = variant_config(recipe, name, device)
        except ValueError as error:
            if name in named:
                raise ValueError(f"--variants {name}: {error}") from error
            runs.append(Run(name, recipe, failure=str(error)))
            continue
        if name in HOST:
            models = models or HostModels(changed, device)
            bench: Steps = HostBench(changed, device, models)
        else:
            bench = Bench(changed, device, build)
        runs.append(Run(name, changed, keys, _cases(bench, batches)))
    return runs


def _cases(bench: Steps, batches: dict[tuple[int, ...], Batch]) -> list[Case]:
    """A case for each shape; variants share the clips of a shape."""
    cases = list[Case]()
    for shape, bn_size in shapes_to_measure(bench.recipe):
        if shape not in batches:
            clips = shape.batch // processes_of(bench.recipe)
            batches[shape] = made_up_batch(bench.recipe, clips, shape)
        cases.append(Case(bench, shape, bn_size, batches[shape]))
    return cases
