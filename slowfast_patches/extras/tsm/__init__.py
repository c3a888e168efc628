"""TSM: a 2-D network that exchanges some channels between neighbouring frames."""

from slowfast_patches.extras.tsm.keys import TsmKeys
from slowfast_patches.registry import ModelSpec, register_model
from slowfast_patches.seams import Lazy, register_section, register_weight_names

FILES = (
    "configs/Kinetics/TSM_8x8_R50.yaml",
    "configs/Kinetics/TSM_8x8_R50_MULTIGRID.yaml",
    "configs/Kinetics/TSM_8x8_R50_1536GPU.yaml",
    "configs/Kinetics/TSM_8x8_R50_1536GPU_MULTIGRID.yaml",
    "docs/tsm.md",
    "docs/tsm.png",
    "tests/slowfast_patches/extras/tsm",
)
"""Files of this extra outside of its folder."""

register_section("TSM", TsmKeys, scores=True)
register_model(
    "tsm",
    ModelSpec(is_resnet=True, is_cast=True, check=Lazy(f"{__name__}.tsm_model:check_frames")),
)(Lazy(f"{__name__}.tsm_model:build_tsm"))
register_weight_names(
    Lazy(f"{__name__}.tsm_weights:torchvision_names"),
    Lazy(f"{__name__}.tsm_weights:shift_problems"),
)
