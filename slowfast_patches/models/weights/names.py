"""Renaming of tensors from the names in a file to PySlowFast's names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from slowfast_patches.seams import WEIGHT_NAMES
from slowfast_patches.utils.errors import UserError

_WRAPPERS = re.compile(r"^(?:module\.|model\.)*")
"""Prefixes that DistributedDataParallel or a trainer adds to every name."""

_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv\d|bn\d|downsample\.\d)\.(\w+)")
"""Name of a tensor in a residual block of torchvision's ResNets."""
_PARTS = {
    "conv1": "branch2.a",
    "conv2": "branch2.b",
    "conv3": "branch2.c",
    "bn1": "branch2.a_bn",
    "bn2": "branch2.b_bn",
    "bn3": "branch2.c_bn",
    "downsample.0": "branch1",
    "downsample.1": "branch1_bn",
}
"""PySlowFast's names of the parts of a residual block."""


def host_names(tensors: Mapping[str, Tensor], known: Collection[str]) -> dict[str, Tensor]:
    """Rename tensors to PySlowFast's names.

    The function knows the names of Caffe2, of torchvision's ResNets, of split BN in later
    PySlowFast releases, and those of `seams.WEIGHT_NAMES`. Unknown names stay the same. A prefix
    that DistributedDataParallel or a trainer added to all names is removed.

    Args:
        tensors: Tensors under the names in the file.
        known: Names of the tensors in the model. If the file has some of these names, nothing is
            renamed. For example, a registered model may itself use torchvision's names.

    Raises:
        ValueError: The file has a ResNet of basic blocks (18 or 34 layers).
    """
    if not tensors.keys().isdisjoint(known):
        return _fold_split_batchnorm(tensors)
    if "pred_w" in tensors or "conv1_w" in tensors:  # Caffe2
        from slowfast.utils.c2_model_loading import get_name_convert_func

        convert = get_name_convert_func()
        return {convert(name): value for name, value in tensors.items()}
    named = without_wrappers(tensors)
    for rename, _ in WEIGHT_NAMES:
        named = rename(named)
    if "layer1.0.conv1.weight" in named and "layer1.0.conv3.weight" not in named:
        raise UserError(
            "the file has a ResNet with two convolutions per block (18 or 34 layers), but only "
            "ResNet-50 and ResNet-101, which have three, are supported"
        )
    return _fold_split_batchnorm({host_name(n): value for n, value in named.items()})


def without_wrappers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefix that DistributedDataParallel or a trainer added to all names."""
    prefix = min((_WRAPPERS.findall(name)[0] for name in tensors), key=len, default="")
    return {name.removeprefix(prefix): value for name, value in tensors.items()}


def host_name(name: str) -> str:
    """Convert the name of a tensor of torchvision's ResNets to PySlowFast's name.

    For example, layer1.0.conv1.weight becomes s2.pathway0_res0.branch2.a.weight. Unknown names are
    returned unchanged.
    """
    if match := _BLOCK.fullmatch(name):
        stage, block, part, suffix = match.groups()
        return f"s{int(stage) + 1}.pathway0_res{block}.{_PARTS[part]}.{suffix}"
    return re.sub(r"^(conv|bn)1\.(?=\w+$)", r"s1.pathway0_stem.\1.", name)


def _fold_split_batchnorm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert split BN layers to plain BN layers.

    Later PySlowFast releases store a split BN layer X with C channels as these tensors:

    - X.weight and X.bias: scale and shift (C).
    - X.bn.*: statistics of the whole layer (C), which training does not update.
    - X.split_bn.running_mean and X.split_bn.running_var: concatenated statistics of n splits (n·C).
    """
    mean = ".split_bn.running_mean"
    layers = [name.removesuffix(mean) for name in tensors if name.endswith(mean)]
    inner = tuple(f"{layer}.{part}." for layer in layers for part in ("bn", "split_bn"))
    plain = {name: value for name, value in tensors.items() if not name.startswith(inner)}
    for layer in layers:
        # Combine the n splits, which have equal size, by the law of total variance.
        # The variance of the layer is the mean of the variances plus the variance of the means.
        shape = (-1, tensors[f"{layer}.weight"].numel())
        means = tensors[layer + mean].reshape(shape)
        variances = tensors[f"{layer}.split_bn.running_var"].reshape(shape)
        plain[f"{layer}.running_mean"] = means.mean(0)
        plain[f"{layer}.running_var"] = variances.mean(0) + means.var(0, correction=0)
    return plain
