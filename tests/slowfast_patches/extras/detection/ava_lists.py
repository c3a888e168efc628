"""Small lists in AVA's format: two videos of frames, with bright boxes on a dark background."""

import cv2
import numpy as np

from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.lists.frame_list import HEADER

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
