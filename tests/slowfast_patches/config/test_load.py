"""Loading of recipes: bases, overrides, types of values, and error messages."""

import logging
import os
import time
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
        ("DATA_LOADER.NUM_WORKERS", "4", 4),
        ("DATA_LOADER.NUM_WORKERS", "'auto'", "auto"),
        ("TRAIN.MIXED_PRECISION", "True", True),
        ("TRAIN.MIXED_PRECISION", "auto", "auto"),
        *(
            ("TRAIN.FREEZE", text, ["s1", "s2"])
            for text in ("s1,s2", "s1, s2", "[s1,s2]", "[s1, s2]", "(s1,s2)", "['s1', s2]")
        ),
        ("TRAIN.FREEZE", "s1,s[2-3]_fuse", ["s1", "s[2-3]_fuse"]),
        ("TRAIN.FREEZE", "[s1,s[23]_fuse]", ["s1", "s[23]_fuse"]),
    ],
)
def test_values_take_the_type_of_the_default(key, text, value):
    found = value_of(key, text)
    assert found == value
    assert type(found) is type(value)


@settings(max_examples=30, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_survives_the_way_through_text(number):
    assert load_recipe(None, ["SOLVER.GAMMA", repr(number)]).solver.gamma == number


def test_the_test_uses_the_data_set_of_the_training_unless_another_is_set():
    keys = ["TRAIN.DATASET", "ssv2", "DATA.RANDOM_FLIP", False]
    assert load_recipe(None, keys).test.dataset == "ssv2"
    assert load_recipe(None, [*keys, "TEST.DATASET", "kinetics"]).test.dataset == "kinetics"


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("SOLVER.BASE_LR", "fast", "a finite number"),
        ("TRAIN.BATCH_SIZE", "1.5", "a whole number"),
        ("TRAIN.ENABLE", "1", "True or False"),
        ("DATA.MEAN", "0.5", "a list"),
        ("OUTPUT_DIR", 3, "a string"),
        ("SOLVER.CLIP_GRAD_VAL", "big", "a finite number or None"),
        ("TRAIN.MIXED_PRECISION", 1, "True or False or a string"),
        ("SOLVER.STEPS", "[0,1e400]", "a list in which each item is a finite number"),
        ("RESNET.SPATIAL_STRIDES", "[1,2,2,2]", "a list in which each item is a list"),
        ("SOLVER.WEIGHT_DECAY", float("nan"), "a finite number"),
        ("MODEL.NUM_CLASSES", "six", "a whole number, not"),
    ],
)
def test_a_value_of_another_type_is_refused(key, value, wanted):
    with pytest.raises(ValueError) as caught:
        load_recipe(None, [key, value])
    assert f"{key} must be {wanted}" in str(caught.value)
    assert f"not {value!r} (the command line)" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["SOLVER.BASE_LR", "1", "NUM_GPUS"], "NUM_GPUS has no value"),
        (["SOLVER", "1"], "SOLVER is a section"),
        (["MODEL.NUM_CLASSES", 10**10], "be .*1,000,000, not 10000000000 "),
        *(
            (["DATA.NUM_FRAMES", text], r"DATA\.NUM_FRAMES must be a whole number, .{,90} \(the")
            for text in ("[" * 20_000, "[" * 150 + "]" * 150, "-" * 20_000 + "1")
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_pairs_that_cannot_be_used_are_refused(words, said):
    with pytest.raises(ValueError, match=said):
        load_recipe(None, words)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("SOLVER.WARMUP_EPOCH", "SOLVER.WARMUP_EPOCHS"),
        ("BASE_LR", "SOLVER.BASE_LR"),
        ("solver.base_lr", "SOLVER.BASE_LR"),
        ("X", None),
    ],
)
def test_an_unknown_key_names_its_nearest_match(key, nearest):
    with pytest.raises(ValueError) as caught:
        load_recipe(None, [key, "1"])
    advice = f". Did you mean {nearest}?" if nearest else ""
    assert str(caught.value) == f"{key} is not a config key (the command line){advice}"


def test_files_that_cannot_be_used_are_named(tmp_path):
    def refused(text: str, *words: str) -> None:
        path = write(tmp_path / "recipe.yaml", text)
        with pytest.raises(ValueError) as caught:
            load_recipe(path)
        assert all(word in str(caught.value) for word in (*words, str(path)))

    with pytest.raises(ValueError, match=r"nothing\.yaml cannot be read"):
        load_recipe(tmp_path / "nothing.yaml")
    refused("SOLVER:\n  BASE_LR: 1\n  STEPS: [0, 1\nTRAIN:\n", "line 4: this is not valid YAML")
    refused("- 1", "mapping of sections")
    refused("_BASE_: recipe.yaml", "refers to itself")
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/none\.yaml cannot be read: .*configs has no"
    ):
        load_recipe(write(tmp_path / "delta.yaml", "_BASE_: none.yaml"))
    refused("SOLVER: 1", "SOLVER is a section")
    refused("SOLVER: {BASE_LR: {X: 1}}", "SOLVER.BASE_LR.X is not a config key")
    base = write(tmp_path / "recipe.yaml", "SOLVER:\n  BASE_LRR: 1\n")
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LRR is not a config key") as caught:
        load_recipe(write(tmp_path / "delta.yaml", "_BASE_: recipe.yaml"))
    assert str(base) in str(caught.value)
    assert load_recipe(write(tmp_path / "empty.yaml", "SOLVER:\n")) == load_recipe(None)


def doublings(first: str, more: str) -> str:
    """Return YAML with 30 anchors. Each contains the previous one twice, so it has 2^30 nodes."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {more.replace('*', f'*a{n - 1}')}" for n in range(1, 31)]
    return "\n".join(lines)


HOSTILE = {
    "an anchor's list in a list": doublings("[1, 1]", "[*, *]"),
    "an anchor's mapping in a mapping": doublings("{x: 1, y: 1}", "{x: *, y: *}"),
    "an anchor's mapping merged": doublings("{x: 1}", "{<<: [*, *]}"),
    "a text that an anchor repeats": f"a: &a {'x' * 1000}\nb: [{'*a, ' * 1000}]",
    "a list in itself": "DATA: {MEAN: &a [*a]}",
    "a mapping in itself": "DATA: &a {MEAN: *a}",
    "brackets": "DATA: {MEAN: " + "[" * 100_000,
    "closed brackets": f"DATA: {{MEAN: {'[' * 100_000}{']' * 100_000}}}",
    "braces": "{a: " * 100_000,
    "dashes": "- " * 100_000,
    "complex keys": "? " * 100_000,
    "tags": "!!int x",
    "dates": "DATA: {MEAN: 2001-99-99}",
    "digits": f"DATA: {{NUM_FRAMES: {'9' * 5000}}}",
    "a control character": "DATA: {MEAN: \0}",
    "a key twice": "SOLVER:\n  BASE_LR: 1\n  GAMMA: 1\n  BASE_LR: 2",
    "a section twice": "SOLVER: {BASE_LR: 1}\nSOLVER: {GAMMA: 1}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_yaml_made_to_harm_is_refused_in_one_line(tmp_path, name):
    path = write(tmp_path / "recipe.yaml", HOSTILE[name])
    before = time.process_time()
    with pytest.raises(ValueError) as caught:
        load_recipe(path)
    assert time.process_time() - before < 1
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    assert len(said) < 200 + len(str(path))


def test_anchors_are_as_good_as_what_they_stand_for(tmp_path):
    text = (
        "TRAIN: &t {DATASET: ssv2, BATCH_SIZE: &b 4}\nTEST: {<<: *t, BATCH_SIZE: 6}\nLOG_PERIOD: *b"
    )
    recipe = load_recipe(write(tmp_path / "recipe.yaml", text))
    assert (recipe.test.dataset, recipe.test.batch_size, recipe.log_period) == ("ssv2", 6, 4)


@pytest.mark.parametrize("base", ["5", "", "[a.yaml, 5]", "{a: b}"])
def test_a_base_is_a_file_or_a_list_of_files(tmp_path, base):
    write(tmp_path / "a.yaml", "NUM_GPUS: 0")
    with pytest.raises(ValueError, match=r"own\.yaml: _BASE_ must be a file or a list of"):
        load_recipe(write(tmp_path / "own.yaml", f"_BASE_: {base}"))


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo.yaml")  # nobody writes into it
    (tmp_path / "folder.yaml").mkdir()
    for name in ("fifo.yaml", "folder.yaml"):
        with pytest.raises(ValueError, match=rf"{name} cannot be read: it is not a regular file"):
            load_recipe(write(tmp_path / "own.yaml", f"_BASE_: {name}"))
    with pytest.raises(ValueError, match="no such file"):
        load_recipe(write(tmp_path / "own.yaml", "_BASE_: ~nobody-of-this-name/a.yaml"))


def test_each_base_is_read_once(tmp_path):
    """Each of 40 bases is named twice by the next one, which must not cause 2**40 readings."""
    write(tmp_path / "0.yaml", "SOLVER: {BASE_LR: 0.75}")
    for n in range(1, 41):
        write(tmp_path / f"{n}.yaml", f"_BASE_: [{n - 1}.yaml, {n - 1}.yaml]")
    assert load_recipe(tmp_path / "40.yaml").solver.base_lr == 0.75


def test_a_pair_may_be_written_with_an_equals_sign():
    words = ["SOLVER.BASE_LR=0.5", "OUTPUT_DIR", "runs/a=b", "HF.MODEL=c=d"]
    recipe = load_recipe(None, words)
    assert (recipe.solver.base_lr, recipe.output_dir) == (0.5, "runs/a=b")
    assert recipe.hf.model == "c=d"


def test_a_recipe_name_with_a_typo_gets_the_nearest_name():
    with pytest.raises(ValueError, match=r"Did you mean configs/Demo/OWN_VIDEOS\.yaml\?"):
        load_recipe("configs/Demo/OWN_VIDEO.yaml")


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
    assert "MODEL.MODEL_NAME MViT (the command line) has no effect" in warnings_of(caplog)[0]


def test_the_heads_crop_follows_the_training_crop_unless_it_is_given():
    crops = ["DATA.TRAIN_CROP_SIZE", "128"]
    assert load_recipe(None, crops).data.crop_size == 128
    with pytest.raises(ValueError, match=r"DATA\.CROP_SIZE 224 .* DATA\.TRAIN_CROP_SIZE 128"):
        check_recipe(load_recipe(None, [*crops, "DATA.CROP_SIZE", "224"]))


def test_other_values_make_another_recipe_and_the_text_says_so():
    recipe = load_recipe(None)
    other = recipe.replaced({"DATA.NUM_FRAMES": 16, "SOLVER.STEPS": [0, 4], "NUM_GPUS": 0})
    assert (other.data.num_frames, other.solver.steps, other["NUM_GPUS"]) == (16, (0, 4), 0)
    assert recipe.data.num_frames == host_config(recipe).DATA.NUM_FRAMES == 8
    assert host_config(other).SOLVER.STEPS == [0, 4]
    with pytest.raises(AttributeError):
        recipe.num_gpus = 3
    assert other.replaced({"DATA.NUM_FRAMES": 8, "SOLVER.STEPS": [], "NUM_GPUS": 1}) == recipe
