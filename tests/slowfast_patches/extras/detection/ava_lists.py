"""Small lists in AVA's format: of two videos of frames, and of videos that move."""

from pathlib import Path

import cv2
import numpy as np

from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.lists.frame_list import HEADER
from tests.moving import FAST, moving
from tests.slowfast_patches.datasets.made_videos import write_video

WIDTH, HEIGHT = 96, 64
BOXES = {"a": "0.125,0.250,0.375,0.750", "b": "0.750,0.000,1.000,0.500"}
LABEL_MAP = "".join(
    f'label {{\n  name: "{name}"\n  label_id: {n}\n}}\n' for n, name in ((1, "stand"), (3, "run"))
)
KEYS = (
    *("DETECTION.ENABLE", True, "TRAIN.DATASET", "ava", "TEST.DATASET", "ava"),
    *("MODEL.LOSS_FUNC", "bce", "MODEL.HEAD_ACT", "sigmoid", "MODEL.NUM_CLASSES", 3),
    *("AVA.LABEL_MAP_FILE", "names.pbtxt", "AVA.EXCLUSION_FILE", ""),
    *("RESNET.SPATIAL_STRIDES", [[1, 1], [2, 2], [2, 2], [1, 1]]),
)


def write_lists(folder, train, val="", predicted=""):
    """Write the files of AVA.ANNOTATION_DIR, and frame lists of two videos with 70 frames each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ava_train_v2.2.csv").write_text(train)
    (folder / "ava_val_v2.2.csv").write_text(val)
    (folder / "ava_val_predicted_boxes.csv").write_text(predicted)
    (folder / "names.pbtxt").write_text(LABEL_MAP)
    rows = [f'{name} {n} {k} {name}.jpg ""' for n, name in enumerate("ab") for k in range(70)]
    for split in ("train", "val"):
        (folder / f"{split}.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    for name, box in BOXES.items():
        left, top, right, bottom = map(float, box.split(","))
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        columns = slice(round(left * WIDTH), round(right * WIDTH))
        image[round(top * HEIGHT) : round(bottom * HEIGHT), columns] = 255
        cv2.imwrite(str(folder / f"{name}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 100])
    return folder


def recipe_of(folder, *overrides):
    return load_recipe(None, ["DATA.PATH_TO_DATA_DIR", str(folder), *KEYS, *overrides])


ACTIONS = ("up", "down", "left", "right", "stand", "run")


def write_moving_boxes(folder: Path) -> None:
    """Write 12 training and 4 validation videos of 4 s, each with two key frames.

    A key frame has two or three boxes, each with one or two of the labels.
    """
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        listed, boxes = list[str](), list[str]()
        for number in range(count):
            name = f"{split}{number:04d}"
            images = moving((1, 1), 40, 64, 40, seed=len(name) * 100 + number)
            write_video(folder / split / f"{name}.mp4", images, fps=10, gop=8, options=FAST)
            listed.append(f"{split}/{name}.mp4 0\n")
            persons = rng.integers(2, 4)
            for second in (902, 903):
                for person in range(persons):
                    left, top = rng.uniform(0, 0.6, 2)
                    box = f"{left:.3f},{top:.3f},{left + 0.3:.3f},{top + 0.4:.3f}"
                    labels = 1 + rng.choice(len(ACTIONS), rng.integers(1, 3), replace=False)
                    boxes += [f"{name},{second:04d},{box},{n},{person}\n" for n in labels]
        (folder / f"{split}.csv").write_text("".join(listed))
        (folder / f"ava_{split}_v2.2.csv").write_text("".join(boxes))
    items = (f'item {{\n  name: "{name}"\n  id: {n}\n}}\n' for n, name in enumerate(ACTIONS, 1))
    (folder / "ava_action_list.pbtxt").write_text("".join(items))
