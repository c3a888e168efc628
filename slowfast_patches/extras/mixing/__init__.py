"""Mixup and cutmix: pairs of training clips are blended, together with their labels."""

from slowfast_patches.config.fields import Ignored
from slowfast_patches.extras.mixing.keys import RULES, MixupKeys
from slowfast_patches.seams import Lazy, register_batch_transform, register_section

FILES = (
    "configs/Kinetics/VIDEOMAE_B_16x4.yaml",
    "configs/Kinetics/VIDEOMAE_B_16x4_COOLDOWN.yaml",
    "configs/Kinetics/VIDEOMAE_B_16x4_MULTIGRID.yaml",
    "configs/Kinetics/VJEPA2_L_16x4_PROBE.yaml",
    "configs/Kinetics/VJEPA2_L_16x4_PROBE_MULTIGRID.yaml",
    "tests/slowfast_patches/extras/mixing",
    "tests/slowfast_patches/extras/transformers_and_mixing",
)
"""Files of this extra outside of its folder. The recipes need the transformers, too."""

register_section(
    "MIXUP",
    MixupKeys,
    rules=RULES,
    ignored={"MIXUP.LABEL_SMOOTH_VALUE": Ignored("Set MODEL.LABEL_SMOOTHING.", (0,))},
)
register_batch_transform(
    "MIXUP.ENABLE",
    Lazy(f"{__name__}.mixup:Mixing"),
    is_divided=Lazy(f"{__name__}.mixup:depends_on_division"),
)
