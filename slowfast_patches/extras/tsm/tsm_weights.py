"""Weight files of the authors of TSM.

In these files, the ResNet is the module base_model. A convolution with a shifted input is named
"net" inside the module that shifts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from slowfast_patches.extras.tsm.tsm_model import ShiftedConv3d
from slowfast_patches.models.weights.names import host_name, without_wrappers

_MARK = "base_model.conv1.weight"
"""Name of a tensor that every file has."""
_CLASSIFIER = re.compile(r"^(?:new_fc|base_model\.fc)\.")


def torchvision_names(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename the tensors of a TSM file to the names of torchvision's ResNets.

    The kernels get an axis for time, because TSM applies 2-D kernels to single frames. So the file
    needs no TRAIN.CHECKPOINT_INFLATE.
    """
    if _MARK not in tensors:
        return tensors
    return {_renamed(n): v.unsqueeze(2) if v.ndim == 4 else v for n, v in tensors.items()}


def _renamed(name: str) -> str:
    name = _CLASSIFIER.sub("head.projection.", name).removeprefix("base_model.")
    return name.replace(".conv1.net.", ".conv1.")


def shift_problems(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """Describe the difference if the file and the model shift channels in different blocks."""
    named = without_wrappers(tensors)
    if _MARK not in named:
        return {}
    shifted = [name for name in named if name.endswith(".conv1.net.weight")]
    there = {host_name(_renamed(name)).removesuffix(".weight") for name in shifted}
    here = {name for name, m in model.named_modules() if isinstance(m, ShiftedConv3d)}
    if there == here:
        return {}
    return {"Temporal shift": f"in {len(there)} blocks, not in {len(here)} blocks"}
