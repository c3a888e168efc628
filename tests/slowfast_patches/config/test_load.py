"""Loading of recipes: bases, overrides, types of values, and keys that follow from others."""

from importlib import import_module
from pathlib import Path

import pytest

from slowfast_patches.config import load_recipe, pyslowfast_config
from slowfast_patches.config.recipe import KEYS


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_wins_over_its_base_and_the_command_line_over_both(tmp_path):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base" / "far.yaml", "SOLVER: {BASE_LR: 0.4, MOMENTUM: 0.5, GAMMA: 0.3}")
    write(tmp_path / "near.yaml", "_BASE_: base/far.yaml\nSOLVER: {BASE_LR: 0.2, MOMENTUM: 0.6}")
    path = write(tmp_path / "delta.yaml", "_BASE_: near.yaml\nSOLVER: {BASE_LR: 0.1}\nTEST:\n")
    solver = load_recipe(path, ["SOLVER.BASE_LR", "1e-4"]).solver
    assert (solver.base_lr, solver.momentum, solver.gamma) == (1e-4, 0.6, 0.3)
    assert load_recipe(path, ["SOLVER.BASE_LR=1e-4"]).solver == solver


def test_a_base_is_one_of_the_package_from_any_folder(tmp_path):
    shipped = "configs/Demo/SLOWFAST_DEMO.yaml"
    path = write(tmp_path / "own.yaml", f"_BASE_: {shipped}\nSOLVER: {{BASE_LR: 0.7}}")
    assert load_recipe(path) == load_recipe(shipped, ["SOLVER.BASE_LR", 0.7])
    (tmp_path / "configs/Demo").mkdir(parents=True)
    write(tmp_path / shipped, "MODEL: {NUM_CLASSES: 3}")
    assert load_recipe(path).model.num_classes == 3, "a file beside it wins"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("SOLVER.BASE_LR", "1", 1.0),
        ("SOLVER.GAMMA", "5e-324", 5e-324),
        ("SOLVER.GAMMA", "1.7976931348623157e308", 1.7976931348623157e308),  # the largest
        ("TRAIN.BATCH_SIZE", "16.0", 16),
        ("DATA.PATH_PREFIX", "2024", "2024"),
        ("DATA.PATH_LABEL_SEPARATOR", '","', ","),
        ("MULTIGRID.LONG_CYCLE_FACTORS", "[(0.5, 0.5), (1, 1)]", ((0.5, 0.5), (1.0, 1.0))),
        ("SOLVER.CLIP_GRAD_L2NORM", "None", None),
        ("DATA_LOADER.NUM_WORKERS", "4", 4),
        ("TRAIN.MIXED_PRECISION", "True", True),
        ("TRAIN.MIXED_PRECISION", "auto", "auto"),
        *(("TRAIN.FREEZE", text, ("s1", "s2")) for text in ("s1, s2", "[s1,s2]", "['s1', s2]")),
        ("TRAIN.FREEZE", "[s1,s[23]_fuse]", ("s1", "s[23]_fuse")),
    ],
)
def test_values_take_the_type_of_the_default(key, text, value):
    found = load_recipe(None, [key, text])[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("TRAIN.BATCH_SIZE", "1.5", "a whole number"),
        ("TRAIN.ENABLE", "1", "True or False"),
        ("DATA.MEAN", "0.5", "a list"),
        ("OUTPUT_DIR", 3, "a string"),
        ("SOLVER.CLIP_GRAD_VAL", "big", "a finite number or None"),
        ("SOLVER.STEPS", "[0,1e400]", "a finite number"),
        ("SOLVER.WEIGHT_DECAY", float("nan"), "a finite number"),
        ("DATA.NUM_FRAMES", "[" * 20_000, "a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused(key, value, wanted):
    with pytest.raises(ValueError) as caught:
        load_recipe(None, [key, value])
    assert f"{key} must be {wanted}, not " in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["SOLVER.BASE_LR", "1", "NUM_GPUS"], "NUM_GPUS has no value"),
        (["solver.base_lr", "1"], r"not a config key \(the command line\).*mean SOLVER.BASE_LR\?"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused(words, said):
    with pytest.raises(ValueError, match=said):
        load_recipe(None, words)


def test_a_key_of_pyslowfast_that_is_not_installed_here_may_have_its_default(monkeypatch):
    """As in a printed config of PySlowFast, whose default of SOLVER.GAMMA is 0.1."""
    loading = import_module("slowfast_patches.config.load_recipe")
    installed = {name: key for name, key in KEYS.items() if name != "SOLVER.GAMMA"}
    monkeypatch.setattr(loading, "KEYS", installed)
    assert "SOLVER.GAMMA" not in load_recipe(None, ["SOLVER.GAMMA", "0.1"]).given
    with pytest.raises(ValueError, match=r"SOLVER\.GAMMA is not a config key"):
        load_recipe(None, ["SOLVER.GAMMA", "0.2"])


BOMB = "A: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"A{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
"""A billion values in a kilobyte."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SOLVER:\n  STEPS: [0, 1\nTRAIN:\n", "recipe.yaml is not valid YAML.* line 3"),
        ("SOLVER: {BASE_LR: 1}\nSOLVER: {GAMMA: 1}", "the key SOLVER is given twice"),
        ("- 1", "mapping of sections"),
        ("", "recipe.yaml is empty"),
        ("# all is commented out\n", "recipe.yaml is empty"),
        ("SOLVER:\n  MAX_EPOCH: 010\n", "010 has another value in YAML 1.1.* line 2"),
        ("SOLVER: {MAX_EPOCH: 1:30}", "1:30 has another value in YAML 1.1"),
        ("SOLVER: {BASE_LR: 1:30.5}", "1:30.5 has another value in YAML 1.1"),
        (BOMB, "more than 100,000 values, with all its aliases"),
        ("_BASE_: none.yaml", "none.yaml cannot be read: .*configs has no"),
        ("_BASE_: recipe.yaml", "recipe.yaml refers to itself through _BASE_"),
        ("_BASE_: 3", "_BASE_ must be a path or a list of paths, not 3"),
        ("SOLVER: 1", "SOLVER is not a config key"),
        ("SOLVER:\n  BASE_LRR: 1\n", r"SOLVER\.BASE_LRR is not a config key \(.*recipe.yaml\)"),
    ],
)
def test_files_that_cannot_be_used_are_named(text, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        load_recipe(write(tmp_path / "recipe.yaml", text))


def test_the_source_of_each_key_is_known(tmp_path):
    path = write(tmp_path / "a.yaml", "MODEL: {NUM_CLASSES: 7}\nSOLVER: {GAMMA: 0.3}")
    recipe = load_recipe(path, ["SOLVER.GAMMA", 0.2, "RNG_SEED", 3])
    given = {"SOLVER.GAMMA": "the command line", "RNG_SEED": "the command line"}
    assert recipe.given == {"MODEL.NUM_CLASSES": str(path), **given}
    counted = load_recipe(path, ["MODEL.NUM_CLASSES", "auto"])
    assert counted.given == {"SOLVER.GAMMA": str(path)}
    assert counted.model.num_classes == load_recipe(None).model.num_classes


# Keys that follow from others.


def test_the_architecture_decides_names_channels_and_stages():
    slow = load_recipe(None, ["MODEL.ARCH", "slow"])
    assert slow.model.arch == "slowonly"
    assert pyslowfast_config(slow).DATA.INPUT_CHANNEL_NUM == [3]
    assert slow.resnet.spatial_strides == ((1,), (2,), (2,), (2,))
    assert pyslowfast_config(slow).MODEL.MODEL_NAME == "ResNet"
    fast = load_recipe(None)
    assert fast.resnet.num_block_temp_kernel == ((3, 3), (4, 4), (6, 6), (3, 3))
    assert fast.nonlocal_.location == (((), ()),) * 4
    assert pyslowfast_config(fast).MODEL.MODEL_NAME == "SlowFast"


def test_data_set_and_crop_of_the_test_follow_from_the_training():
    recipe = load_recipe(None, ["TRAIN.DATASET", "ssv2", "DATA.TRAIN_CROP_SIZE", 128])
    assert recipe.test.dataset == "ssv2"
    assert pyslowfast_config(recipe).DATA.CROP_SIZE == 128
    given = load_recipe(None, ["TRAIN.DATASET", "ssv2", "TEST.DATASET", "charades"])
    assert given.test.dataset == "charades"
    with pytest.raises(ValueError, match=r"DATA\.CROP_SIZE 200 .* DATA\.TRAIN_CROP_SIZE 224"):
        load_recipe(None, ["DATA.CROP_SIZE", 200])
    as_it_is = ["DATA.CROP_SIZE", 128, "DATA.INPUT_CHANNEL_NUM", [3, 3]]
    keys = ["TRAIN.DATASET", "ssv2", "DATA.TRAIN_CROP_SIZE", 128]
    assert load_recipe(None, [*as_it_is, *keys]) == recipe


def test_defaults_of_a_printed_pyslowfast_config_are_no_contradictions():
    printed = ["DATA.CROP_SIZE", 224, "DATA.INPUT_CHANNEL_NUM", [3, 3]]
    keys = ["MODEL.ARCH", "slow", "DATA.TRAIN_CROP_SIZE", 128]
    assert load_recipe(None, [*printed, *keys]) == load_recipe(None, keys)
