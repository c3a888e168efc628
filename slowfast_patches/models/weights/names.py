"""Renaming of tensors from the names in a file to PySlowFast's names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

_WRAPPERS = re.compile(r"^(?:module\.|model\.)*")
"""Prefixes that DistributedDataParallel or a trainer adds to every name."""

_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv\d|bn\d|downsample\.\d)\.(\w+)")
"""Name of a tensor in a residual block of torchvision's ResNets."""
_PARTS = {
    **{f"conv{n}": f"branch2.{letter}" for n, letter in enumerate("abc", 1)},
    **{f"bn{n}": f"branch2.{letter}_bn" for n, letter in enumerate("abc", 1)},
    "downsample.0": "branch1",
    "downsample.1": "branch1_bn",
}
"""PySlowFast's names of the parts of a residual block."""

_TSM_CLASSIFIER = re.compile(r"^(?:new_fc|base_model\.fc)\.")
"""Prefixes of the classifier in models of the TSM authors."""

_TSM_SHIFTED = re.compile(r"(layer\d\.\d+\.conv1)\.net\.weight")
"""Name of the first convolution of a block, inside a module that shifts the block's input."""


def host_names(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], frozenset[str] | None]:
    """Rename tensors to PySlowFast's names.

    The function knows the names of Caffe2, of torchvision's ResNets, of the TSM authors, and of
    split BN in later PySlowFast releases. Unknown names stay the same. A prefix that
    DistributedDataParallel or a trainer added to all names is removed.

    Args:
        tensors: Tensors under the names in the file.

    Returns:
        The renamed tensors, and the names of the convolutions whose input is shifted in the file's
        model. The latter is None if the names in the file do not show this.

    Raises:
        ValueError: The file has a ResNet of basic blocks (18 or 34 layers).
    """
    if "pred_w" in tensors or "conv1_w" in tensors:  # Caffe2
        from slowfast.utils.c2_model_loading import get_name_convert_func

        convert = get_name_convert_func()
        return {convert(name): value for name, value in tensors.items()}, None
    prefix = min((_WRAPPERS.findall(name)[0] for name in tensors), key=len, default="")
    named = {name.removeprefix(prefix): value for name, value in tensors.items()}
    shifted = None
    if "base_model.conv1.weight" in named:
        named, shifted = _torchvision_of_tsm(named)
    if "layer1.0.conv1.weight" in named and "layer1.0.conv3.weight" not in named:
        raise ValueError(
            "the file has a ResNet with two convolutions per block (18 or 34 layers), but only "
            "ResNet-50 and ResNet-101, which have three, are supported"
        )
    named = {_from_torchvision(name): value for name, value in named.items()}
    return _fold_split_batchnorm(named), shifted


def _torchvision_of_tsm(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], frozenset[str]]:
    """Rename tensors from the names of the TSM authors to torchvision's names.

    Kernels (C', C, H, W) become (C', C, 1, H, W). TRAIN.CHECKPOINT_INFLATE is not needed, because
    TSM applies 2-D kernels to single frames, so that the added axis has size 1.

    Returns:
        The renamed tensors, and the PySlowFast names of the convolutions with a temporal shift.
    """
    named = dict[str, Tensor]()
    shifted = set[str]()
    for name, value in tensors.items():
        new = _TSM_CLASSIFIER.sub("head.projection.", name).removeprefix("base_model.")
        if match := _TSM_SHIFTED.fullmatch(new):
            new = f"{match[1]}.weight"
            shifted.add(_from_torchvision(new).removesuffix(".weight"))
        named[new] = value.unsqueeze(2) if value.ndim == 4 else value
    return named, frozenset(shifted)


def _from_torchvision(name: str) -> str:
    """Convert the name of a tensor in torchvision's ResNet to PySlowFast's name.

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
    plain = dict(tensors)
    for name in tensors:
        layer, is_split, _ = name.rpartition(".split_bn.running_mean")
        if not is_split:
            continue
        # Combine the n splits, which have equal size. By the law of total variance, the variance of
        # the layer is the mean of the variances plus the variance of the means.
        shape = (-1, tensors[f"{layer}.weight"].numel())
        means = tensors[name].reshape(shape)
        variances = tensors[f"{layer}.split_bn.running_var"].reshape(shape)
        for other in tensors:
            if other.startswith((f"{layer}.bn.", f"{layer}.split_bn.")):
                del plain[other]
        plain[f"{layer}.running_mean"] = means.mean(0)
        plain[f"{layer}.running_var"] = variances.mean(0) + means.var(0, correction=0)
    return plain
