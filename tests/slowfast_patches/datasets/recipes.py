"""A recipe of small clips for the tests of data sets."""

from slowfast_patches.config import load_recipe

NEEDED = {
    "ssv2": ("DATA.RANDOM_FLIP", False),
    "charades": ("DATA.MULTI_LABEL", True),
}
SMALL = (
    *("DATA.NUM_FRAMES", 8, "DATA.SAMPLING_RATE", 2, "DATA.TRAIN_JITTER_SCALES", [48, 64]),
    *("DATA.TRAIN_CROP_SIZE", 48, "DATA.TEST_CROP_SIZE", 64, "MODEL.NUM_CLASSES", 6),
    *("TEST.NUM_ENSEMBLE_VIEWS", 1, "TEST.NUM_SPATIAL_CROPS", 1),
    *("TRAIN.BATCH_SIZE", 2, "NUM_GPUS", 0, "DATA_LOADER.PIN_MEMORY", False),
)


def recipe_of(folder, *overrides, dataset="kinetics"):
    """Return the recipe for the lists in a folder, with what the data set needs."""
    data = ("DATA.PATH_TO_DATA_DIR", str(folder), "TRAIN.DATASET", dataset, "TEST.DATASET", dataset)
    return load_recipe(None, [*data, *NEEDED.get(dataset, ()), *SMALL, *overrides])
