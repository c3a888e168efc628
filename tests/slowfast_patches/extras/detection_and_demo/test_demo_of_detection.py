"""Tests of the demo data in the form of AVA's lists: detection reads boxes and labels."""

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.extras.demo.ava import ACTIONS, make_ava_form
from slowfast_patches.extras.demo.spec import DemoSpec
from slowfast_patches.extras.detection.lists import FIRST_SECOND, SECONDS
from slowfast_patches.utils.errors import UserError

SMALL = DemoSpec(train=2, val=1, test=0, frames=40, width=64, height=40)
KEYS = (
    *("AVA.LABEL_MAP_FILE", "ava_action_list.pbtxt", "AVA.EXCLUSION_FILE", ""),
    *("AVA.TEST_PREDICT_BOX_LISTS", [], "AVA.FULL_TEST_ON_VAL", True),
    *("DETECTION.ENABLE", True, "TRAIN.DATASET", "ava", "TEST.DATASET", "ava"),
    *("MODEL.LOSS_FUNC", "bce", "MODEL.HEAD_ACT", "sigmoid", "MODEL.NUM_CLASSES", len(ACTIONS)),
    *("RESNET.SPATIAL_STRIDES", [[1, 1], [2, 2], [2, 2], [1, 1]]),
)


def test_detection_reads_the_boxes_and_labels_that_were_rendered(tmp_path):
    assert make_ava_form(tmp_path, SMALL, 1) == 3
    assert make_ava_form(tmp_path, SMALL, 1) == 0
    recipe = load_recipe(None, ["DATA.PATH_TO_DATA_DIR", str(tmp_path), *map(str, KEYS)])
    for split, count in (("train", 2), ("val", 1)):
        key_frames = build_dataset(recipe, split).videos
        # 40 frames at 10 a second: key frames 2 and 3 seconds after AVA's first frame.
        seconds = [FIRST_SECOND + 2, FIRST_SECOND + 3]
        assert [each.second for each in key_frames] == seconds * count
        assert seconds[0] == SECONDS[0]
        for each in key_frames:
            assert 2 <= len(each.boxes) <= 3
            assert all(left < right and top < bottom for left, top, right, bottom in each.boxes)
            assert all(len(labels) in (1, 2) for labels in each.labels)


def test_a_video_too_short_for_a_key_frame_is_refused(tmp_path):
    with pytest.raises(UserError, match="--frames is 29, but must be at least 30"):
        make_ava_form(tmp_path, DemoSpec(1, 1, 0, frames=29), 1)
