"""Augmentations of training clips: RandAugment, colour jitter, random erasing, and the user's."""

from slowfast_patches.config.fields import Ignored
from slowfast_patches.extras.augment.keys import RULES, AugKeys
from slowfast_patches.seams import Lazy, register_clip_transform, register_section

FILES = (
    "benchmarks/real_video/growing.py",
    "benchmarks/real_video/recipes/rivals/digits/growing_augmentation.yaml",
    "benchmarks/real_video/recipes/rivals/growing_augmentation.yaml",
    "tests/slowfast_patches/extras/augment",
)
"""Files of this extra outside of its folder."""

register_section(
    "AUG",
    AugKeys,
    rules=RULES,
    ignored={
        "AUG.NUM_SAMPLE": Ignored(
            "An epoch always has one clip of each video. Remove the key.", (1,)
        ),
        "AUG.INTERPOLATION": Ignored(
            "Geometric augmentations always interpolate bilinearly. Remove the key.",
            ("bilinear", "bicubic"),
        ),
        "AUG.RE_SPLIT": Ignored("Random erasing applies to all clips. Remove the key.", (False,)),
    },
)
register_clip_transform(
    "AUG.ENABLE",
    Lazy(f"{__name__}.augmentation:Augmentation.of_recipe"),
    Lazy(f"{__name__}.augmentation:try_augmentations"),
)
