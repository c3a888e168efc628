"""Renaming of tensors from the names in a file to PySlowFast's names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from slowfast_patches.utils.errors import UserError

_WRAPPERS = re.compile(r"^(?:module\.|model\.)*")
"""Prefixes that DistributedDataParallel or a trainer adds to every name."""

_BLOCK = re.compile(r"layer(\d)\.(\d+)\.(conv\d|bn\d|downsample\.\d)\.(?:net\.)?(\w+)")
"""Name of a tensor in a residual block of torchvision's ResNets. In models of the TSM authors, the
convolution is called "net" inside a module that shifts its input."""
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

_TSM_CLASSIFIER = re.compile(r"^(?:new_fc|base_model\.fc)\.")
"""Prefixes of the classifier in models of the TSM authors."""


def host_names(
    tensors: Mapping[str, Tensor], known: Collection[str]
) -> tuple[dict[str, Tensor], frozenset[str] | None]:
    """Rename tensors to PySlowFast's names.

    The function knows the names of Caffe2, of torchvision's ResNets, of the TSM authors, and of
    split BN in later PySlowFast releases. Unknown names stay the same. A prefix that
    DistributedDataParallel or a trainer added to all names is removed.

    Args:
        tensors: Tensors under the names in the file.
        known: Names of the tensors in the model. If the file has some of these names, it needs no
            other names: a registered model may itself use torchvision's names, for example.

    Returns:
        The renamed tensors, and the names of the convolutions whose input is shifted in the file's
        model. The latter is None if the names in the file do not show this.

    Raises:
        ValueError: The file has a ResNet of basic blocks (18 or 34 layers).
    """
    if not tensors.keys().isdisjoint(known):
        return _fold_split_batchnorm(tensors), None
    if "pred_w" in tensors or "conv1_w" in tensors:  # Caffe2
        from slowfast.utils.c2_model_loading import get_name_convert_func

        convert = get_name_convert_func()
        return {convert(name): value for name, value in tensors.items()}, None
    prefix = min((_WRAPPERS.findall(name)[0] for name in tensors), key=len, default="")
    named = {name.removeprefix(prefix): value for name, value in tensors.items()}
    if "layer1.0.conv1.weight" in named and "layer1.0.conv3.weight" not in named:
        raise UserError(
            "the file has a ResNet with two convolutions per block (18 or 34 layers), but only "
            "ResNet-50 and ResNet-101, which have three, are supported"
        )
    shifted = None
    if "base_model.conv1.weight" in named:  # of the TSM authors
        # TSM applies 2-D kernels to single frames, which needs no TRAIN.CHECKPOINT_INFLATE.
        named = {n: v.unsqueeze(2) if v.ndim == 4 else v for n, v in named.items()}
        inside = [name for name in named if name.endswith(".conv1.net.weight")]
        shifted = frozenset(_host_name(name).removesuffix(".weight") for name in inside)
    return _fold_split_batchnorm({_host_name(n): value for n, value in named.items()}), shifted


def _host_name(name: str) -> str:
    """Convert the name of a tensor of torchvision or of the TSM authors to PySlowFast's name.

    For example, layer1.0.conv1.weight becomes s2.pathway0_res0.branch2.a.weight. Unknown names are
    returned unchanged.
    """
    name = _TSM_CLASSIFIER.sub("head.projection.", name).removeprefix("base_model.")
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
        # Combine the n splits, which have equal size. By the law of total variance, the variance of
        # the layer is the mean of the variances plus the variance of the means.
        shape = (-1, tensors[f"{layer}.weight"].numel())
        means = tensors[layer + mean].reshape(shape)
        variances = tensors[f"{layer}.split_bn.running_var"].reshape(shape)
        plain[f"{layer}.running_mean"] = means.mean(0)
        plain[f"{layer}.running_var"] = variances.mean(0) + means.var(0, correction=0)
    return plain
