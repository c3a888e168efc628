"""Renaming of tensors: from the names in a file to those of PySlowFast's models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

_WRAPPERS = re.compile(r"^(?:module\.|model\.)*")
"""Prefixes that DistributedDataParallel or a trainer puts before every name."""

_STEM = re.compile(r"(conv|bn)1\.(\w+)")
_BRANCH = re.compile(r"layer(\d)\.(\d+)\.(conv|bn)([123])\.(\w+)")
_SHORTCUT = re.compile(r"layer(\d)\.(\d+)\.downsample\.([01])\.(\w+)")
"""Names in torchvision's ResNets with bottleneck blocks: stem, residual branch, shortcut."""

_TSM_CLASSIFIER = re.compile(r"^(?:new_fc|base_model\.fc)\.")
"""Last layer of the TSM authors' models, after torchvision's ResNet or inside it."""

_TSM_SHIFTED = re.compile(r"(layer\d\.\d+\.conv1)\.net\.weight")
"""First convolution of a block, wrapped by the module that shifts its input."""

_TSM_OTHERS = re.compile(r"layer\d\.(?:\d+\.)?(?:net|block)\..+")
"""Blocks or stages wrapped by a module that shifts, pools or adds a non-local block."""


class Named(NamedTuple):
    """Tensors under PySlowFast's names.

    tensors: Tensors by name. A tensor without a known name keeps the file's.
    shifted: Convolutions whose input the file's model shifts, or None if the names do not tell.
    """

    tensors: dict[str, Tensor]
    shifted: frozenset[str] | None = None


def host_names(tensors: Mapping[str, Tensor], kind: str = "pytorch") -> Named:
    """Rename tensors to PySlowFast's names.

    The names may be those of Caffe2, of torchvision's ResNets, of the TSM authors or of split BN in
    PySlowFast's later releases. A prefix that all names share is removed. Other names stay.

    Args:
        tensors: Tensors under the names in the file.
        kind: "caffe2" or "pytorch". The naming of a PyTorch file is detected.

    Raises:
        ValueError: The file has a ResNet of basic blocks (18 or 34 layers), or a TSM that does more
            than shift the input of the first convolution of its blocks.
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
            "the file has a ResNet with two convolutions in a block (18 or 34 layers), but the "
            "models here have three, as ResNet-50 and ResNet-101 do"
        )
    named = {_from_torchvision(name): value for name, value in named.items()}
    return Named(_fold_split_batchnorm(named), shifted)


def _torchvision_of_tsm(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], frozenset[str]]:
    """Rename the tensors of the TSM authors to torchvision's names.

    Kernels (C', C, H, W) become (C', C, 1, H, W). Unlike those of an image model, they belong to a
    video model that applies them to single frames, so TRAIN.CHECKPOINT_INFLATE is not needed.

    Returns:
        The tensors, and PySlowFast's names of the convolutions whose input is shifted.
    """
    named = dict[str, Tensor]()
    shifted = set[str]()
    for name, value in tensors.items():
        new = _TSM_CLASSIFIER.sub("head.projection.", name).removeprefix("base_model.")
        if _TSM_OTHERS.fullmatch(new):
            raise ValueError(
                f"the file has a TSM with {name}, but a TSM here only shifts before the first "
                "convolution of a block (conv1.net) and has no pooling or non-local blocks"
            )
        if match := _TSM_SHIFTED.fullmatch(new):
            new = f"{match[1]}.weight"
            shifted.add(_from_torchvision(new).removesuffix(".weight"))
        named[new] = value.unsqueeze(2) if value.ndim == 4 else value
    return named, frozenset(shifted)


def _from_torchvision(name: str) -> str:
    """Rename a tensor of torchvision's ResNet.

    For example, layer1.0.conv1.weight becomes s2.pathway0_res0.branch2.a.weight. Unknown names
    stay.
    """
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
    """Rename the tensors of split BN to those of plain BN.

    PySlowFast's later releases store a split BN layer X of C channels like this:

    - X.weight and X.bias: scale and shift.
    - X.bn.running_mean and so on: statistics of the layer.
    - X.split_bn.running_mean and so on: statistics of n splits, one after the other, n·C values.

    Training updates the statistics of the splits, so they take precedence over those of X.bn.
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
        # Combine splits of equal size. By the law of total variance, the variance is the mean of
        # the variances plus the variance of the means.
        means, variances = (t.reshape(-1, scale.numel()) for t in (mean, variance))
        plain[f"{layer}.running_mean"] = means.mean(0)
        plain[f"{layer}.running_var"] = variances.mean(0) + means.var(0, correction=0)
        if (counter := tensors.get(f"{source}.num_batches_tracked")) is not None:
            plain[f"{layer}.num_batches_tracked"] = counter
    return plain
