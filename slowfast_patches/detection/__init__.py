"""Action detection: classify given boxes at key frames, as in AVA.

The package registers this folder like a module of a user. No other module imports it.
"""

from slowfast_patches import patching
from slowfast_patches.detection.clips import KeyFrameClips
from slowfast_patches.detection.demo import make_ava_form
from slowfast_patches.detection.lists import ava_classes, ava_path, evaluation_files, read_ava
from slowfast_patches.detection.roi_align import ROIAlign
from slowfast_patches.detection.task import Detection
from slowfast_patches.registry import DatasetFamily, register_dataset

__all__ = ["Detection"]

patching.provide_roi_align(ROIAlign)
register_dataset(
    "ava",
    DatasetFamily(
        path=ava_path,
        read=read_ava,
        classes=ava_classes,
        task="detection",
        build=KeyFrameClips.of_recipe,
        files=evaluation_files,
        make_demo=make_ava_form,
    ),
)
