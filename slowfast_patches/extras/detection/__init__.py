"""Action detection: classify given boxes at key frames, as in AVA."""

from slowfast_patches import patching
from slowfast_patches.config.fields import Ignored
from slowfast_patches.extras.detection.keys import AvaKeys, DetectionKeys
from slowfast_patches.registry import DatasetSpec, TaskSpec, register_dataset, register_task
from slowfast_patches.seams import Lazy, register_section

FILES = (
    "configs/AVA",
    "configs/Demo/AVA_DEMO.yaml",
    "configs/Demo/AVA_DEMO_MULTIGRID.yaml",
    "docs/detection.md",
    "tests/slowfast_patches/extras/detection",
    "tests/slowfast_patches/extras/detection_and_demo",
)
"""Files of this extra outside of its folder."""

_COLOURS = "Colours are not augmented for AVA. Remove the key."

register_section("DETECTION", DetectionKeys, scores=True)
register_section(
    "AVA",
    AvaKeys,
    ignored={
        "AVA.BGR": Ignored("Set DATA.REVERSE_INPUT_CHANNEL.", (False,)),
        "AVA.IMG_PROC_BACKEND": Ignored(
            "There is only one image backend. Remove the key.", ("cv2", "pytorch")
        ),
        "AVA.TEST_FORCE_FLIP": Ignored("Test clips are never flipped. Remove the key.", (False,)),
        "AVA.TRAIN_USE_COLOR_AUGMENTATION": Ignored(_COLOURS, (False,)),
        "AVA.TRAIN_PCA_JITTER_ONLY": Ignored(_COLOURS, (True, False)),
        "AVA.TRAIN_PCA_EIGVAL": Ignored(_COLOURS, ([0.225, 0.224, 0.229],)),
        "AVA.TRAIN_PCA_EIGVEC": Ignored(_COLOURS),
    },
)
register_task(
    "detection",
    TaskSpec(
        "boxes",
        ("DETECTION.ENABLE", True),
        {"MODEL.LOSS_FUNC": "bce", "MODEL.HEAD_ACT": "sigmoid"},
        {
            "TEST.NUM_ENSEMBLE_VIEWS": ((1,), "a key frame has only one temporal view"),
            "DATA.CLIP_SAMPLING": (("auto", "stride"), "clips are centred on key frames"),
            "DATA.ENSEMBLE_METHOD": (("sum",), "the scores of a box are averaged over crops"),
            "SOLVER.CLASS_WEIGHTS": (((),), "class weights are not supported for boxes"),
            "TRAIN.COMPILE": ((False,), "clips have different numbers of boxes"),
        },
        multi_label=True,
        metrics=("map",),
        check=Lazy(f"{__name__}.detection_task:check_feature_map"),
        scores_clips=False,
    ),
)(Lazy(f"{__name__}.detection_task:Detection"))
register_dataset(
    "ava",
    DatasetSpec(
        path=Lazy(f"{__name__}.lists:ava_path"),
        read=Lazy(f"{__name__}.lists:read_ava"),
        classes=Lazy(f"{__name__}.lists:ava_classes"),
        task="detection",
        build=Lazy(f"{__name__}.key_frame_clips:KeyFrameClips.of_recipe"),
        files=Lazy(f"{__name__}.lists:evaluation_files"),
    ),
)
patching.provide_roi_align(Lazy(f"{__name__}.roi_align:ROIAlign"))
