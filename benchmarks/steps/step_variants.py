"""Build the variants of a training step that are measured.

There are variants with each switch alone, with all switches, with no switch, and with the code of
PySlowFast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from multigrid import Batch, Shape
from slowfast_patches.config import check_recipe
from slowfast_patches.config.key_lists import speed_switches
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import check_world_size
from slowfast_patches.models.solver import autocast
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import MANY_VIDEOS, shapes_to_measure
from slowfast_patches.train.dry_run import made_up_batch
from steps.case import Bench, Case, Steps
from steps.host import HostBench, host_problem

Keys = Mapping[str, object]

SWITCHES = {key.partition(".")[2].lower(): key for key in speed_switches()}
"""Maps the name of a variant to its switch, a config key that may make steps faster if True."""

# These variants set one key each. The variant `all` sets only the keys in SWITCHES.
# It leaves out keys that save memory or change the shapes.
_ALONE: dict[str, dict[str, object]] = {
    **{name: {key: True} for name, key in SWITCHES.items()},
    "act_checkpoint": {"MODEL.ACT_CHECKPOINT": True},
    "size_divisor": {"MULTIGRID.SIZE_DIVISOR": 16},
    "host_tf32": {"TRAIN.TF32": True},
}
_OFF: dict[str, object] = dict.fromkeys(SWITCHES.values(), False) | {
    "MODEL.ACT_CHECKPOINT": False,
    "MULTIGRID.SIZE_DIVISOR": 1,
    "TRAIN.DETERMINISTIC": False,
}

HOST = ("host", "host_tf32")
EACH = ("plain", *SWITCHES, "act_checkpoint", "size_divisor", "all", *HOST)
NAMES = ("recipe", *EACH)


def with_switches(recipe: Recipe, name: str, device: torch.device) -> tuple[Recipe, Keys]:
    """Return the recipe with the switches of a variant, and a dict of the keys that were set.

    Raises:
        ValueError: The device or the recipe does not support the variant. The message is the
            reason.
    """
    if name == "recipe":
        return recipe, {}
    if name == "all":
        keys = _all_possible(recipe, device)
        return recipe.replaced(keys), keys
    keys = _OFF | _ALONE.get(name, {})
    changed = recipe.replaced(keys)
    problem = host_problem(recipe) if name in HOST else None
    if problem := problem or _problem(changed, keys, device):
        raise ValueError(problem)
    return changed, keys


def _all_possible(recipe: Recipe, device: torch.device) -> Keys:
    """Return all switches with values that the device and the recipe support.

    The switches are tried one after another. A switch is set to True if it is supported together
    with the switches that are already True.
    """
    keys: dict[str, object] = {}
    for key in SWITCHES.values():
        keys[key] = _problem(recipe.replaced(keys | {key: True}), {key: True}, device) is None
    return keys


def _problem(recipe: Recipe, keys: Keys, device: torch.device) -> str | None:
    """Return the reason why the keys that are True are not supported, or None if they are."""
    on = {key for key, value in keys.items() if value is True}
    has = {"TRAIN.TF32": _has_tf32(device), "TRAIN.CUDNN_BENCHMARK": device.type == "cuda"}
    for key in has.keys() & on:
        if not has[key]:
            return f"{key} requires a GPU (for TF32, of the Ampere generation or later)"
    try:  # the same checks as before a training run
        check_recipe(recipe)
        if keys.get("MULTIGRID.SIZE_DIVISOR", 1) != 1:
            check_shapes(recipe, [shape for shape, _ in shapes_to_measure(recipe)])
        if "TRAIN.COMPILE" in on:
            check_world_size(recipe, schedule_of(recipe, MANY_VIDEOS))
    except ValueError as error:
        return str(error)
    if "TRAIN.COMPILE" in on and (problem := compiler_problem(device)) is not None:
        return f"TRAIN.COMPILE does not work on this machine: {problem}"
    return None


def compiler_problem(device: torch.device) -> str | None:
    """Return the reason why torch.compile does not work on a device, or None if it works."""
    try:
        torch.compile(lambda x: 2 * x + 1)(torch.zeros(8, device=device))
    except Exception as error:  # the type of the error depends on which compiler is missing
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


def _has_tf32(device: torch.device) -> bool:
    """Return whether a device is a GPU that supports TF32 (Ampere or later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


@dataclass
class Variant:
    """Variant of the training step of a recipe.

    Attributes:
        name: Name of the variant.
        recipe: The recipe with the switches of the variant.
        keys: The config keys that the variant sets.
        cases: A case for each shape.
        failure: The reason why the variant is not supported. `cases` is then empty.
    """

    name: str
    recipe: Recipe
    keys: Keys = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    failure: str | None = None

    @property
    def precision(self) -> str:
        """Precision of matrix products: "float32", "tf32", "bfloat16" or "float16"."""
        device = self.cases[0].bench.device
        with autocast(self.recipe, device):
            if torch.is_autocast_enabled(device.type):
                return str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
        return "tf32" if self.recipe.train.tf32 and _has_tf32(device) else "float32"


def build_variants(recipe: Recipe, names: Sequence[str], device: torch.device) -> list[Variant]:
    """Build the variants of a recipe and their cases, which share the same synthetic clips."""
    batches = dict[Shape, Batch]()
    variants = list[Variant]()
    for name in names:
        try:
            changed, keys = with_switches(recipe, name, device)
        except ValueError as error:
            variants.append(Variant(name, recipe, failure=str(error)))
            continue
        bench = (HostBench if name in HOST else Bench)(changed, device)
        variants.append(Variant(name, changed, keys, _cases(bench, batches)))
    return variants


def _cases(bench: Steps, batches: dict[Shape, Batch]) -> list[Case]:
    """Build a case for each shape.

    Take the clips of a shape from `batches`, or make them and add them to `batches`.
    """
    cases = list[Case]()
    for shape, bn_group_size in shapes_to_measure(bench.recipe):
        if shape not in batches:
            clips = shape.batch // bench.recipe.world_size
            batches[shape] = made_up_batch(bench.recipe, clips, shape)
        cases.append(Case(bench, shape, bn_group_size, batches[shape]))
    return cases
