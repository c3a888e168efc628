"""Loading: bases, overrides, types of values, and errors that say where and what to write."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowfast_patches.config import check_recipe, host_config, load_recipe


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_recipe_wins_over_its_base_and_the_command_line_over_both(tmp_path):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base" / "far.yaml", "SOLVER: {BASE_LR: 0.4, MOMENTUM: 0.5, GAMMA: 0.3}")
    write(tmp_path / "near.yaml", "_BASE_: base/far.yaml\nSOLVER: {BASE_LR: 0.2, MOMENTUM: 0.6}")
    path = write(tmp_path / "delta.yaml", "_BASE_: near.yaml\nSOLVER: {BASE_LR: 0.1}")
    solver = load_recipe(path, ["SOLVER.BASE_LR", "1e-4"]).solver
    assert (solver.base_lr, solver.momentum, solver.gamma) == (1e-4, 0.6, 0.3)


def test_a_base_is_one_of_the_package_from_any_folder(tmp_path):
    shipped = "configs/Demo/SLOWFAST_DEMO.yaml"
    path = write(tmp_path / "own.yaml", f"_BASE_: {shipped}\nSOLVER: {{BASE_LR: 0.7}}")
    assert load_recipe(path) == load_recipe(shipped, ["SOLVER.BASE_LR", 0.7])
    (tmp_path / "configs/Demo").mkdir(parents=True)
    write(tmp_path / shipped, "MODEL: {NUM_CLASSES: 3}")
    assert load_recipe(path).model.num_classes == 3, "a file beside it wins"


def value_of(key: str, text: object) -> Any:
    *sections, name = key.split(".")
    node = host_config(load_recipe(None, [key, text]))
    for section in sections:
        node = node[section]
    return node[name]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("SOLVER.BASE_LR", "1", 1.0),
        ("TRAIN.BATCH_SIZE", "16.0", 16),
        ("TRAIN.BATCH_SIZE", "1e2", 100),
        ("DATA.PATH_PREFIX", "2024", "2024"),
        ("DATA.PATH_LABEL_SEPARATOR", '","', ","),
        ("MULTIGRID.LONG_CYCLE_FACTORS", "[(0.5, 0.5), (1, 1)]", [[0.5, 0.5], [1.0, 1.0]]),
        ("SOLVER.CLIP_GRAD_L2NORM", "1", 1.0),
        ("SOLVER.CLIP_GRAD_L2NORM", "None", None),
        ("AVA.TRAIN_LISTS", "['a.csv', 'b.csv']", ["a.csv", "b.csv"]),
        ("DATA_LOADER.NUM_WORKERS", "4", 4),
        ("DATA_LOADER.NUM_WORKERS", "'AUTO'", "auto"),
        ("TRAIN.MIXED_PRECISION", "True", True),
        ("TRAIN.MIXED_PRECISION", "auto", "auto"),
    ],
)
def test_values_take_the_type_of_the_default(key, text, value):
    found = value_of(key, text)
    assert found == value
    assert type(found) is type(value)


@settings(max_examples=30, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_survives_the_way_through_text(number):
    assert load_recipe(None, ["SOLVER.BASE_LR", repr(number)]).solver.base_lr == number


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("SOLVER.BASE_LR", "fast", "a number"),
        ("SOLVER.BASE_LR", None, "a number"),
        ("TRAIN.BATCH_SIZE", "1.5", "a whole number"),
        ("TRAIN.ENABLE", "1", "True or False"),
        ("DATA.MEAN", "0.5", "a list"),
        ("DATA.MEAN", ["red"], "a list with a number in each place"),
        ("OUTPUT_DIR", 3, "a text"),
        ("SOLVER.CLIP_GRAD_VAL", "big", "a number or None"),
        ("DATA_LOADER.NUM_WORKERS", "many", "a whole number, or auto"),
        ("SOLVER.REFERENCE_BATCH_SIZE", 2.5, "a whole number"),
        ("TRAIN.MIXED_PRECISION", "1", "True or False, or auto"),
    ],
)
def test_a_value_of_another_type_is_refused(key, value, wanted):
    with pytest.raises(ValueError) as caught:
        load_recipe(None, [key, value])
    assert f"{key} takes {wanted}" in str(caught.value)
    assert f"not {value!r} (the command line)" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("SOLVER.WARMUP_EPOCH", "SOLVER.WARMUP_EPOCHS"),
        ("BASE_LR", "SOLVER.BASE_LR"),
        ("NUM_GPUS.X", "NUM_GPUS"),
        ("SOLVERS.BASE_LR", "SOLVER.BASE_LR"),
        ("WIDTH.DEPTH", None),  # RESNET.DEPTH is another section's
    ],
)
def test_an_unknown_key_names_its_nearest_match(key, nearest):
    with pytest.raises(ValueError) as caught:
        load_recipe(None, [key, "1"])
    advice = f"; did you mean {nearest}?" if nearest else ""
    assert str(caught.value) == f"{key} is not a config key (the command line){advice}"


def test_files_that_cannot_be_used_are_named(tmp_path):
    def refused(text: str, *words: str) -> None:
        path = write(tmp_path / "recipe.yaml", text)
        with pytest.raises(ValueError) as caught:
            load_recipe(path)
        assert all(word in str(caught.value) for word in (*words, str(path)))

    with pytest.raises(ValueError, match=r"nothing\.yaml cannot be read"):
        load_recipe(tmp_path / "nothing.yaml")
    refused("SOLVER:\n  BASE_LR: 1\n  STEPS: [0, 1\nTRAIN:\n", "line 4: this is not YAML")
    refused("- 1", "mapping of sections")
    refused("_BASE_: recipe.yaml", "leads back")
    with pytest.raises(ValueError, match=rf"{tmp_path}/none\.yaml cannot be read: .*configs$"):
        load_recipe(write(tmp_path / "delta.yaml", "_BASE_: none.yaml"))
    refused("SOLVER: 1", "SOLVER is a section")
    refused("SOLVER: {BASE_LR: {X: 1}}", "SOLVER.BASE_LR.X is not a config key")
    base = write(tmp_path / "recipe.yaml", "SOLVER:\n  BASE_LRR: 1\n")
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LRR is not a config key") as caught:
        load_recipe(write(tmp_path / "delta.yaml", "_BASE_: recipe.yaml"))
    assert str(base) in str(caught.value)
    assert load_recipe(write(tmp_path / "empty.yaml", "SOLVER:\n")) == load_recipe(None)


def test_overrides_come_in_pairs():
    with pytest.raises(ValueError, match="NUM_GPUS has no value"):
        load_recipe(None, ["SOLVER.BASE_LR", "1", "NUM_GPUS"])
    with pytest.raises(ValueError, match=r"write SOLVER\.BASE_LR 1"):
        load_recipe(None, ["SOLVER.BASE_LR=1"])
    with pytest.raises(ValueError, match="SOLVER is a section"):
        load_recipe(None, ["SOLVER", "1"])


# Keys that follow from others.


def test_the_architecture_decides_names_channels_and_stages(caplog):
    slow = load_recipe(None, ["MODEL.ARCH", "slow", "MODEL.MODEL_NAME", "ResNet"])
    assert (slow.model.arch, slow.data.input_channel_num) == ("slowonly", (3,))
    assert slow.resnet.spatial_strides == ((1,), (2,), (2,), (2,))
    fast = load_recipe(None)
    assert fast.resnet.num_block_temp_kernel == ((3, 3), (4, 4), (6, 6), (3, 3))
    assert fast.nonlocal_.location == (((), ()),) * 4
    assert not caplog.records
    named = load_recipe(None, ["MODEL.MODEL_NAME", "MViT"])
    assert host_config(named).MODEL.MODEL_NAME == "SlowFast"
    assert "MODEL.MODEL_NAME MViT has no effect" in warnings_of(caplog)[0]


def test_the_heads_crop_follows_the_training_crop_unless_it_is_given():
    crops = ["DATA.TRAIN_CROP_SIZE", "128"]
    assert load_recipe(None, crops).data.crop_size == 128
    with pytest.raises(ValueError, match=r"DATA\.CROP_SIZE 224 .* DATA\.TRAIN_CROP_SIZE is 128"):
        check_recipe(load_recipe(None, [*crops, "DATA.CROP_SIZE", "224"]))


def test_nccl_on_the_cpu_becomes_gloo_with_one_warning(caplog):
    assert load_recipe(None, ["NUM_GPUS", "0", "DIST_BACKEND", "nccl"]).dist_backend == "gloo"
    assert len(warnings_of(caplog)) == 1
    assert load_recipe(None, ["DIST_BACKEND", "nccl"]).dist_backend == "nccl"


def test_other_values_make_another_recipe_and_the_text_says_so():
    recipe = load_recipe(None)
    other = recipe.replaced({"DATA.NUM_FRAMES": 16, "SOLVER.STEPS": [0, 4], "NUM_GPUS": 0})
    assert (other.data.num_frames, other.solver.steps, other["NUM_GPUS"]) == (16, (0, 4), 0)
    assert recipe.data.num_frames == host_config(recipe).DATA.NUM_FRAMES == 8
    assert host_config(other).SOLVER.STEPS == [0, 4]
    with pytest.raises(AttributeError):
        recipe.num_gpus = 3
    assert other.replaced({"DATA.NUM_FRAMES": 8, "SOLVER.STEPS": [], "NUM_GPUS": 1}) == recipe
