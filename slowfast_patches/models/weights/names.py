"""Names of weights: from those that a file has to those of the host's models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

__all__ = ["Named", "host_names"]

_WRAPPERS = re.compile(r"^(?:module\.|model\.)*")
"""What DistributedDataParallel, or a trainer's module, puts before every name."""

_STEM = re.compile(r"(conv|bn)1\.(\w+)")
_BRANCH = re.compile(r"layer(\d)\.(\d+)\.(conv|bn)([123])\.(\w+)")
_SHORTCUT = re.compile(r"layer(\d)\.(\d+)\.downsample\.([01])\.(\w+)")
"""Names of torchvision's ResNets of bottleneck blocks."""

_TSM_CLASSIFIER = re.compile(r"^(?:new_fc|base_model\.fc)\.")
"""In the TSM authors' models, behind torchvision's ResNet or in the place of its last layer."""

_TSM_SHIFTED = re.compile(r"(layer\d\.\d+\.conv1)\.net\.weight")
"""A block's first convolution, in the module that shifts its input."""

_TSM_OTHERS = re.compile(r"layer\d\.(?:\d+\.)?(?:net|block)\..+")
"""A whole block, or a stage, in a module that shifts, pools or adds a non-local block."""


class Named(NamedTuple):
    """Tensors under the host's names, as far as they have any.

    shifted: the convolutions whose input the file's model shifts, where its names tell.
    """

    tensors: dict[str, Tensor]
    shifted: frozenset[str] | None = None


def host_names(tensors: Mapping[str, Tensor], kind: str = "pytorch") -> Named:
    """Give tensors the host's names.

    Caffe2's names, those of torchvision's ResNets and of the TSM authors', a prefix that all names
    share, and the two statistics of split batch normalisation are known; other names stay.

    Args:
        tensors: by the file's names.
        kind: "caffe2", or "pytorch", whose naming is found out.

    Raises:
        ValueError: a ResNet of basic blocks (18, 34), which the host's models do not have, or a TSM
            with other parts than shifts before the first convolutions of blocks.
    """
    if kind == "caffe2":
        from slowfast.utils.c2_model_loading import get_name_convert_func

        convert = get_name_convert_func()
        return Named({convert(name): value for name, value in tensors.items()})
    prefix = min((_WRAPPERS.findall(name)[0] for name in tensors), key=len, default="")
    named = {name.removeprefix(prefix): value for name, value in tensors.items()}
    shifted = None
    if "base_model.conv1.weight" in named:
        named, shifted = _torchvision_of_tsm(named)
    if "layer1.0.conv1.weight" in named and "layer1.0.conv3.weight" not in named:
        raise ValueError(
            "the file is of a ResNet of blocks with two convolutions (18 or 34 layers): the "
            "models here have three in a block, as ResNet-50 and 101"
        )
    named = {_from_torchvision(name): value for name, value in named.items()}
    return Named(_fold_split_batchnorm(named), shifted)


def _torchvision_of_tsm(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], frozenset[str]]:
    """A TSM's tensors by torchvision's names, and the host's names of the shifted convolutions.

    Its kernels (C', C, H, W) are a video model's that sees one frame of several with each: they
    become (C', C, 1, H, W), which no one needs to ask for, unlike an image model's.
    """
    named = dict[str, Tensor]()
    shifted = set[str]()
    for name, value in tensors.items():
        new = _TSM_CLASSIFIER.sub("head.projection.", name).removeprefix("base_model.")
        if _TSM_OTHERS.fullmatch(new):
            raise ValueError(
                f"the file is of a TSM with {name}: the models here shift before the first "
                "convolution of a block (conv1.net), and have neither pooling nor non-local blocks"
            )
        if match := _TSM_SHIFTED.fullmatch(new):
            new = f"{match[1]}.weight"
            shifted.add(_from_torchvision(new).removesuffix(".weight"))
        named[new] = value.unsqueeze(2) if value.ndim == 4 else value
    return named, frozenset(shifted)


def _from_torchvision(name: str) -> str:
    """layer1.0.conv1.weight is s2.pathway0_res0.branch2.a.weight; what is not known stays."""
    if match := _STEM.fullmatch(name):
        return f"s1.pathway0_stem.{match[1]}.{match[2]}"
    if match := _BRANCH.fullmatch(name):
        part = ".abc"[int(match[4])] + "_bn" * (match[3] == "bn")
        return f"s{int(match[1]) + 1}.pathway0_res{match[2]}.branch2.{part}.{match[5]}"
    if match := _SHORTCUT.fullmatch(name):
        part = "branch1" + "_bn" * (match[3] == "1")
        return f"s{int(match[1]) + 1}.pathway0_res{match[2]}.{part}.{match[4]}"
    return name


def _fold_split_batchnorm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split batch normalisation as a plain one.

    The later releases keep the scale and shift of a layer X of C channels as X.weight and X.bias,
    and its statistics as X.bn.running_mean, ..., with those of n splits of the mini-batch beside
    them, one split's C channels after the other's, as X.split_bn.running_mean, ... of n·C values.
    The splits' are the ones that training moves, so they count where both are there.
    """
    plain = dict(tensors)
    for name in tensors:
        layer, suffix, _ = name.rpartition(".bn.running_mean")
        source = f"{layer}.split_bn"
        if f"{source}.running_mean" not in tensors:
            source = f"{layer}.bn"
        parts = [f"{layer}.weight", f"{source}.running_mean", f"{source}.running_var"]
        if not suffix or not all(part in tensors for part in parts):
            continue
        scale, mean, variance = (tensors[part] for part in parts)
        if mean.numel() % scale.numel() or mean.shape != variance.shape:
            continue
        for part in ("running_mean", "running_var", "num_batches_tracked"):
            plain.pop(f"{layer}.bn.{part}", None)
            plain.pop(f"{layer}.split_bn.{part}", None)
        # Over all splits, which are of one size: the mean of the means, and by the law of total
        # variance the mean of the variances plus the variance of the means.
        means, variances = (t.reshape(-1, scale.numel()) for t in (mean, variance))
        plain[f"{layer}.running_mean"] = means.mean(0)
        plain[f"{layer}.running_var"] = variances.mean(0) + means.var(0, correction=0)
        if (counter := tensors.get(f"{source}.num_batches_tracked")) is not None:
            plain[f"{layer}.num_batches_tracked"] = counter
    return plain
