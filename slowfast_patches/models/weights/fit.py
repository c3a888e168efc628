"""Fitting given weights to a model: which of its tensors they fill, wholly, partly or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Fit", "fit_weights", "flat_convolutions", "is_counter"]

_HEAD = "head."

_BEHIND_LATERAL = re.compile(r"s(\d)\.pathway0_res0\.(branch1|branch2\.a)\.weight")
"""Convolutions that see what a lateral connection adds to the slow pathway's channels."""


@dataclass
class Fit:
    """What became of each tensor, by name; counters (`is_counter`) are loaded and not listed.

    values: what the model's tensors become; of `partly` filled ones, with their initial rest.
    loaded, partly, unused: names; `partly` with what was taken.
    missing: names of the model's that are not in the file.
    misfit: names that are in both, of another shape, with the two.
    inflated: how many 2-D convolutions were repeated along time.
    from_images: the weights are an image model's.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    partly: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    misfit: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    inflated: int = 0
    from_images: bool = False


def is_counter(name: str) -> bool:
    """Whether a tensor counts batches: older files do not have it, and the host never reads it."""
    return name.endswith(".num_batches_tracked")


def flat_convolutions(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights (C', C, H, W) that the model wants as (C', C, T, H, W)."""
    return [n for n, w in wanted.items() if n in given and (given[n].ndim, w.ndim) == (4, 5)]


def fit_weights(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Fit:
    """Fill the tensors of a model.

    - A 2-D convolution is repeated along time and divided by the temporal kernel's length, so that
      a clip that stands still gives what its frame gives (Carreira and Zisserman, 2017).
    - Where a lateral connection adds channels behind those that a single pathway has, the weights
      of these are taken, and the added ones' keep their initial values.
    - A head fits as a whole or not at all, and an image model's is not taken.

    Args:
        given: by the host's names.
        wanted: the model's state dict, with its initial values.
    """
    flat = set(flat_convolutions(given, wanted))
    fit = Fit(from_images=bool(flat))
    left = {n: v for n, v in given.items() if not (flat and n.startswith(_HEAD))}
    for name, now in wanted.items():
        if name not in left:
            fit.missing += [] if is_counter(name) else [name]
            continue
        value = left[name].to(now.device, now.dtype)
        value = _inflate(value, now) if name in flat else value
        own = _channels_before_fusion(name, wanted)
        if value.shape == now.shape:
            fit.values[name] = value
            fit.loaded += [] if is_counter(name) else [name]
        elif own and value.shape == now[:, :own].shape:
            fit.values[name] = torch.cat([value, now[:, own:]], 1)
            fit.partly[name] = f"{own} of {now.shape[1]} input channels"
        else:
            fit.misfit[name] = _shapes(name, left[name], now)
    _drop_part_of_head(fit)
    fit.inflated = len(flat.intersection(fit.values))
    fit.unused += [n for n in given if n not in wanted or n not in left]
    return fit


def _inflate(flat: Tensor, wanted: Tensor) -> Tensor:
    """(C', C, H, W) to (C', C, T, H, W) with the T of `wanted`."""
    length = wanted.shape[2]
    return flat.unsqueeze(2).repeat(1, 1, length, 1, 1) / length


def _channels_before_fusion(name: str, wanted: Mapping[str, Tensor]) -> int:
    """Input channels of a convolution without those that a lateral connection adds; 0: none are.

    The host concatenates the slow pathway's channels first, then the fused ones.
    """
    match = _BEHIND_LATERAL.fullmatch(name)
    fusion = f"s{int(match[1]) - 1}_fuse.conv_f2s.weight" if match else ""
    return wanted[name].shape[1] - wanted[fusion].shape[0] if fusion in wanted else 0


def _drop_part_of_head(fit: Fit) -> None:
    """A bias without its weights says nothing."""
    if any(name.startswith(_HEAD) for name in fit.misfit):
        for name in [n for n in fit.loaded if n.startswith(_HEAD)]:
            fit.loaded.remove(name)
            del fit.values[name]
            fit.misfit[name] = f"{name}: left with the rest of the head"


def _shapes(name: str, given: Tensor, wanted: Tensor) -> str:
    if name.startswith(_HEAD) and given.ndim and len(given) != len(wanted):
        return f"{name}: {len(given)} classes there, {len(wanted)} here"
    return f"{name}: {tuple(given.shape)} there, {tuple(wanted.shape)} here"
