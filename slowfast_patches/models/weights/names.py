"""Names of weights: from those that a file has to those of the host's models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

__all__ = ["Named", "host_names"]

_PREFIXES = ("module.", "model.")
"""What a wrapper (DistributedDataParallel, a trainer's module) puts before every name."""

_BLOCK_PARTS = {
    **{f"conv{i}": f"branch2.{part}" for i, part in enumerate("abc", 1)},
    **{f"bn{i}": f"branch2.{part}_bn" for i, part in enumerate("abc", 1)},
    "downsample.0": "branch1",
    "downsample.1": "branch1_bn",
}
"""Parts of a bottleneck block, torchvision's to the host's."""

_TSM_CLASSIFIER = re.compile(r"^(?:new_fc|base_model\.fc)\.")
"""In the TSM authors' models, behind torchvision's ResNet or in the place of its last layer."""

_TSM_SHIFTED = re.compile(r"(layer\d\.\d+\.conv1)\.net\.weight")
"""A block's first convolution, in the module that shifts its input."""

_TSM_OTHERS = re.compile(r"layer\d\.(?:\d+\.)?(?:net|block)\..+")
"""A whole block, or a stage, in a module that shifts, pools or adds a non-local block."""

_SPLIT_STATISTIC = re.compile(
    r"(.+)\.(?:split_)?bn\.(running_mean|running_var|num_batches_tracked)"
)


class Named(NamedTuple):
    """Tensors under the host's names, as far as they have any.

    notes: what was done, in words.
    shifted: the convolutions whose input the file's model shifts, where its names tell.
    """

    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()
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
    named, prefix = _without_prefix(tensors)
    notes = [f"prefix {prefix} taken off"] if prefix else []
    shifted = None
    if from_tsm := "base_model.conv1.weight" in named:
        named, shifted = _torchvision_of_tsm(named)
    if "conv1.weight" in named and "layer1.0.conv1.weight" in named:
        if "layer1.0.conv3.weight" not in named:
            raise ValueError(
                "the file is of a ResNet of blocks with two convolutions (18 or 34 layers): the "
                "models here have three in a block, as ResNet-50 and 101"
            )
        named = {_from_torchvision(name): value for name, value in named.items()}
        notes.append("the TSM authors' names" if from_tsm else "torchvision's names")
    named, folded = _fold_split_batchnorm(named)
    if folded:
        notes.append(f"{folded} split batch normalisations folded")
    return Named(named, tuple(notes), shifted)


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


def _without_prefix(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The tensors without what `_PREFIXES` all of their names start with, and these together."""
    named = dict(tensors)
    taken = ""
    while found := [p for p in _PREFIXES if named and all(n.startswith(p) for n in named)]:
        named = {name.removeprefix(found[0]): value for name, value in named.items()}
        taken += found[0]
    return named, taken


def _from_torchvision(name: str) -> str:
    """layer1.0.conv1.weight is s2.pathway0_res0.branch2.a.weight; what is not known stays."""
    stem = re.fullmatch(r"(conv|bn)1\.(\w+)", name)
    if stem:
        return f"s1.pathway0_stem.{stem[1]}.{stem[2]}"
    block = re.fullmatch(r"layer(\d)\.(\d+)\.(.+)\.(\w+)", name)
    if block is None or block[3] not in _BLOCK_PARTS:
        return name
    stage = int(block[1]) + 1
    return f"s{stage}.pathway0_res{block[2]}.{_BLOCK_PARTS[block[3]]}.{block[4]}"


def _fold_split_batchnorm(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Split batch normalisation as a plain one, and how many there were.

    The later releases keep the scale and shift of a layer X of C channels as X.weight and X.bias,
    and its statistics as X.bn.running_mean, ..., with those of n splits of the mini-batch beside
    them, one split's C channels after the other's, as X.split_bn.running_mean, ... of n·C values.
    The splits' are the ones that training moves, so they count where both are there.
    """
    plain = dict(tensors)
    folded = 0
    for layer in {match[1] for name in tensors if (match := _SPLIT_STATISTIC.fullmatch(name))}:
        source = f"{layer}.split_bn"
        if f"{source}.running_mean" not in tensors:
            source = f"{layer}.bn"
        parts = (f"{layer}.weight", f"{source}.running_mean", f"{source}.running_var")
        if not all(name in tensors for name in parts):
            continue
        scale, mean, variance = (tensors[name] for name in parts)
        if mean.numel() % scale.numel() or mean.shape != variance.shape:
            continue
        for name in [n for n in plain if n.startswith((f"{layer}.bn.", f"{layer}.split_bn."))]:
            del plain[name]
        # Over all splits, which are of one size: the mean of the means, and by the law of total
        # variance the mean of the variances plus the variance of the means.
        means, variances = (t.reshape(-1, scale.numel()) for t in (mean, variance))
        plain[f"{layer}.running_mean"] = means.mean(0)
        plain[f"{layer}.running_var"] = variances.mean(0) + means.var(0, correction=0)
        if (counter := tensors.get(f"{source}.num_batches_tracked")) is not None:
            plain[f"{layer}.num_batches_tracked"] = counter
        folded += 1
    return plain, folded
