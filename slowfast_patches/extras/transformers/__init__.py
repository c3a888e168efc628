"""Video transformers of the package transformers, which train at every shape."""

from slowfast_patches.extras.transformers.keys import HfKeys
from slowfast_patches.registry import ModelSpec, register_model
from slowfast_patches.seams import Lazy, register_section

FILES = (
    "benchmarks/real_video/recipes/VIDEOMAE_FEW.yaml",
    "benchmarks/real_video/recipes/VIDEOMAE_FEW_MULTIGRID.yaml",
    "benchmarks/real_video/recipes/VIDEOMAE_FEW_MULTIGRID_8.yaml",
    "benchmarks/real_video/recipes/VIDEOMAE_FEW_SCRATCH.yaml",
    "benchmarks/real_video/recipes/VIDEOMAE_SPOKEN.yaml",
    "benchmarks/real_video/recipes/VIDEOMAE_WORDS.yaml",
    "benchmarks/real_video/recipes/VIDEOMAE_WORDS_MULTIGRID.yaml",
    "benchmarks/real_video/recipes/vjepa2",
    "configs/Demo/VIDEOMAE_DEMO.yaml",
    "configs/Demo/VIDEOMAE_DEMO_MULTIGRID.yaml",
    "configs/Kinetics/VIDEOMAE_B_16x4.yaml",
    "configs/Kinetics/VIDEOMAE_B_16x4_COOLDOWN.yaml",
    "configs/Kinetics/VIDEOMAE_B_16x4_MULTIGRID.yaml",
    "configs/Kinetics/VJEPA2_L_16x4_PROBE.yaml",
    "configs/Kinetics/VJEPA2_L_16x4_PROBE_MULTIGRID.yaml",
    "docs/frozen_backbones.md",
    "docs/transformers.md",
    "tests/slowfast_patches/extras/transformers",
    "tests/slowfast_patches/extras/transformers_and_hub",
    "tests/slowfast_patches/extras/transformers_and_mixing",
)
"""Files of this extra outside of its folder."""

_NO_BN = "which has no BN"

register_section("HF", HfKeys, scores=True)
register_model(
    "hf",
    ModelSpec(
        has_batchnorm=False,
        compiles=False,
        is_cast=True,
        undecayed_axes=(0, 1, 3),  # position embeddings and tokens have the shape (1, n, C)
        without_effect={
            "BN.USE_PRECISE_STATS": _NO_BN,
            "BN.GROUP_SIZE": _NO_BN,
            "MULTIGRID.BN_BASE_SIZE": _NO_BN,
            "MODEL.CHANNELS_LAST": "which computes on tokens instead of feature maps",
            "MODEL.DROPOUT_RATE": "whose dropout rates are in HF.CONFIG, e.g. hidden_dropout_prob",
        },
        depths=Lazy(f"{__name__}.transformer_model:parameter_depths"),
        weight_files=Lazy(f"{__name__}.pretrained:weight_files"),
        of_folder=Lazy(f"{__name__}.pretrained:of_folder"),
        published=Lazy(f"{__name__}.hub:published"),
    ),
)(Lazy(f"{__name__}.transformer_model:build_transformer"))
