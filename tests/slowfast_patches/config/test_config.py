"""Defaults, loading and checks of configs."""

import logging
from pathlib import Path

import pytest
from fvcore.common.config import CfgNode
from hypothesis import given
from hypothesis import strategies as st
from slowfast.config import defaults as host_defaults

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.architecture import check_frames
from slowfast_patches.config.keys import NO_EFFECT, get_cfg


def flatten(node: CfgNode, prefix: str = "") -> dict:
    flat = {}
    for name, value in node.items():
        if isinstance(value, CfgNode):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


LATER_RELEASE = """
TRAIN: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 64, MIXED_PRECISION: True}
DATA: {NUM_FRAMES: 32, SAMPLING_RATE: 2, TRAIN_JITTER_SCALES: [256, 340], TRAIN_CROP_SIZE: 224,
  TEST_CROP_SIZE: 256, INPUT_CHANNEL_NUM: [3, 3], DECODING_BACKEND: torchvision}
SLOWFAST: {ALPHA: 4, BETA_INV: 8}
MULTIGRID: {SHORT_CYCLE: True, LONG_CYCLE: True, DEFAULT_B: 64}
BN: {USE_PRECISE_STATS: True, NORM_TYPE: sub_batchnorm, NUM_SPLITS: 8}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 94, 154, 196],
  LRS: [1, 0.1, 0.01, 1e-3], MAX_EPOCH: 239, WARMUP_EPOCHS: 34.0, WARMUP_START_LR: 1e-2}
MODEL: {NUM_CLASSES: 400, ARCH: slowfast, MODEL_NAME: SlowFast, HEAD_ACT: softmax}
LOG_MODEL_INFO: False
NUM_GPUS: 8
"""


# Defaults.


def test_off_is_unchanged_the_hosts_keys_keep_the_hosts_defaults():
    ours, host = flatten(get_cfg()), flatten(host_defaults.get_cfg())
    changed = {key for key in host if ours[key] != host[key]}
    assert changed == {"DATA_LOADER.NUM_WORKERS", "DIST_BACKEND", "MODEL.SINGLE_PATHWAY_ARCH"}


def test_the_defaults_can_be_trained():
    check_recipe(load_recipe(None))


# Loading.


def test_a_recipe_of_a_later_release_loads_with_one_warning_for_each_key_without_effect(
    tmp_path, caplog
):
    cfg = load_recipe(write(tmp_path / "recipe.yaml", LATER_RELEASE))
    check_recipe(cfg, world_size=8)
    named = [message.split()[0] for message in warnings_of(caplog)]
    assert sorted(named) == [
        "BN.NORM_TYPE",
        "BN.NUM_SPLITS",
        "DATA.DECODING_BACKEND",
        "MULTIGRID.DEFAULT_B",
    ]
    assert cfg.solver.lrs == [1, 0.1, 0.01, 0.001]  # YAML reads 1e-3 as a text
    assert cfg.solver.warmup_start_lr == 0.01
    assert (cfg.solver.max_epoch, cfg.solver.warmup_epochs) == (239.0, 34.0)
    assert cfg.data.decoding_backend == "pyav"


def test_a_warning_names_key_value_reason_and_what_to_write(caplog):
    load_recipe(None, ["BN.NUM_SPLITS", "4"])
    (message,) = warnings_of(caplog)
    assert "BN.NUM_SPLITS 4" in message
    assert "has no effect" in message
    assert "write BN.GROUP_SIZE, or MULTIGRID.BN_BASE_SIZE" in message


@pytest.mark.parametrize("name", [name for name in NO_EFFECT if "*" not in name])
def test_values_that_ask_for_nothing_are_quiet(name, caplog):
    for value in NO_EFFECT[name].quiet:
        load_recipe(None, [name, value])
    assert warnings_of(caplog) == []


def test_sections_of_later_releases_are_accepted_with_a_warning(caplog):
    load_recipe(None, ["TENSORBOARD.HISTOGRAM.TOPK", "10", "DEMO.INPUT_VIDEO", "a.mp4"])
    assert [m.split()[0] for m in warnings_of(caplog)] == [
        "TENSORBOARD.HISTOGRAM.TOPK",
        "DEMO.INPUT_VIDEO",
    ]


def test_the_result_is_frozen_and_its_dump_loads_to_the_same(tmp_path, caplog):
    cfg = load_recipe(write(tmp_path / "recipe.yaml", LATER_RELEASE), ["SOLVER.MAX_EPOCH", "200.5"])
    caplog.clear()
    again = load_recipe(write(tmp_path / "config.yaml", cfg.text))
    assert again == cfg
    assert warnings_of(caplog) == []
    with pytest.raises(AttributeError):
        cfg.num_gpus = 3


def test_a_recipe_wins_over_its_base_and_the_command_line_over_both(tmp_path):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base" / "far.yaml", "SOLVER: {BASE_LR: 0.4, MOMENTUM: 0.5, GAMMA: 0.3}")
    write(tmp_path / "near.yaml", "_BASE_: base/far.yaml\nSOLVER: {BASE_LR: 0.2, MOMENTUM: 0.6}")
    path = write(tmp_path / "delta.yaml", "_BASE_: near.yaml\nSOLVER: {BASE_LR: 0.1}")
    cfg = load_recipe(path, ["SOLVER.BASE_LR", "1e-4"])
    assert (cfg.solver.base_lr, cfg.solver.momentum, cfg.solver.gamma) == (1e-4, 0.6, 0.3)


def test_a_base_that_leads_back_is_refused(tmp_path):
    write(tmp_path / "a.yaml", "_BASE_: b.yaml")
    path = write(tmp_path / "b.yaml", "_BASE_: a.yaml")
    with pytest.raises(ValueError, match="leads back"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("SOLVER.BASE_LR", "1", 1.0),
        ("SOLVER.MAX_EPOCH", "17.5", 17.5),
        ("TRAIN.BATCH_SIZE", "16.0", 16),
        ("TRAIN.BATCH_SIZE", "1e2", 100),
        ("DATA.PATH_PREFIX", "2024", "2024"),
        ("DATA.PATH_LABEL_SEPARATOR", '","', ","),
        ("DATA.MEAN", "(0, 0.5, 1)", [0.0, 0.5, 1.0]),
        ("MULTIGRID.LONG_CYCLE_FACTORS", "[(0.5, 0.5), (1, 1)]", [[0.5, 0.5], [1.0, 1.0]]),
        ("SOLVER.CLIP_GRAD_L2NORM", "1", 1.0),
        ("SOLVER.CLIP_GRAD_L2NORM", "None", None),
        ("AVA.TRAIN_LISTS", "['a.csv', 'b.csv']", ["a.csv", "b.csv"]),
        ("DATA_LOADER.NUM_WORKERS", "4", 4),
        ("DATA_LOADER.NUM_WORKERS", "0", 0),
        ("DATA_LOADER.NUM_WORKERS", "Auto", "auto"),
        ("DATA_LOADER.NUM_WORKERS", "'AUTO'", "auto"),
    ],
)
def test_values_take_the_type_of_the_default(key, text, value):
    found = flatten(load_recipe(None, [key, text]))[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("AUTO", "auto"), ("3", 3)])
def test_workers_are_auto_or_a_number_and_stay_so_in_a_file(tmp_path, text, value):
    recipe = write(tmp_path / "recipe.yaml", f"DATA_LOADER: {{NUM_WORKERS: {text}}}")
    cfg = load_recipe(recipe)
    assert value == cfg.data_loader.num_workers
    check_recipe(cfg)
    assert load_recipe(write(tmp_path / "config.yaml", cfg.text)) == cfg
    changed = load_recipe(recipe, ["DATA_LOADER.NUM_WORKERS", "2"])
    assert changed.data_loader.num_workers == 2
    with pytest.raises(ValueError, match=r"NUM_WORKERS takes a whole number or auto, not None"):
        load_recipe(write(tmp_path / "empty.yaml", "DATA_LOADER: {NUM_WORKERS: }"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_survives_the_way_through_text(number):
    found = load_recipe(None, ["SOLVER.BASE_LR", repr(number)]).solver.base_lr
    assert found == number


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("SOLVER.BASE_LR", "fast", "a number"),
        ("SOLVER.BASE_LR", "True", "a number"),
        ("SOLVER.BASE_LR", "None", "a number"),
        ("TRAIN.BATCH_SIZE", "1.5", "a whole number"),
        ("TRAIN.BATCH_SIZE", "1e999", "a whole number"),
        ("TRAIN.ENABLE", "1", "True or False"),
        ("TRAIN.ENABLE", "yes", "True or False"),
        ("DATA.MEAN", "0.5", "a list"),
        ("DATA.MEAN", "[0.5, red, 1]", "a list"),
        ("DATA.MEAN", ["red"], "a list with a number in each place"),
        ("OUTPUT_DIR", 3, "a text"),
        ("SOLVER.CLIP_GRAD_VAL", "big", "a number or None"),
        ("DATA_LOADER.NUM_WORKERS", "many", "a whole number or auto"),
        ("DATA_LOADER.NUM_WORKERS", 2.5, "a whole number or auto"),
        ("DATA_LOADER.NUM_WORKERS", "True", "a whole number or auto"),
        ("DATA_LOADER.NUM_WORKERS", "", "a whole number or auto"),
    ],
)
def test_a_value_of_another_type_is_refused(key, value, wanted):
    with pytest.raises(ValueError, match="takes") as caught:
        load_recipe(None, [key, value])
    assert f"{key} takes {wanted}" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("SOLVER.BASE_LRR", "SOLVER.BASE_LR"),
        ("SOLVER.WARMUP_EPOCH", "SOLVER.WARMUP_EPOCHS"),
        ("MULTIGRID.LONGCYCLE", "MULTIGRID.LONG_CYCLE"),
        ("BASE_LR", "SOLVER.BASE_LR"),
        ("NUM_GPU", "NUM_GPUS"),
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


def test_an_unknown_key_of_a_base_names_that_file(tmp_path):
    base = write(tmp_path / "base.yaml", "SOLVER:\n  BASE_LRR: 1\n")
    path = write(tmp_path / "recipe.yaml", "_BASE_: base.yaml\nSOLVER: {BASE_LR: 1}\n")
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LRR is not a config key") as caught:
        load_recipe(path)
    assert str(base) in str(caught.value)


def test_a_section_is_no_value_and_a_value_no_section(tmp_path):
    with pytest.raises(ValueError, match="SOLVER is a section"):
        load_recipe(None, ["SOLVER", "1"])
    with pytest.raises(ValueError, match="SOLVER is a section"):
        load_recipe(write(tmp_path / "a.yaml", "SOLVER: 1"))
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LR\.X is not a config key"):
        load_recipe(write(tmp_path / "b.yaml", "SOLVER: {BASE_LR: {X: 1}}"))
    assert load_recipe(write(tmp_path / "c.yaml", "SOLVER:\n")) == load_recipe(None)


def test_files_that_cannot_be_read_are_named_with_the_line(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.yaml cannot be read"):
        load_recipe(tmp_path / "nothing.yaml")
    path = write(tmp_path / "broken.yaml", "SOLVER:\n  BASE_LR: 1\n  STEPS: [0, 1\nTRAIN:\n")
    with pytest.raises(ValueError, match=r"broken\.yaml, line 4: this is not YAML"):
        load_recipe(path)
    with pytest.raises(ValueError, match="mapping of sections"):
        load_recipe(write(tmp_path / "list.yaml", "- 1"))


def test_overrides_come_in_pairs():
    with pytest.raises(ValueError, match="NUM_GPUS has no value"):
        load_recipe(None, ["SOLVER.BASE_LR", "1", "NUM_GPUS"])
    with pytest.raises(ValueError, match=r"write SOLVER\.BASE_LR 1"):
        load_recipe(None, ["SOLVER.BASE_LR=1"])


# Keys that follow from others.


def test_slow_is_slowonly_with_one_pathway():
    cfg = load_recipe(None, ["MODEL.ARCH", "slow", "MODEL.MODEL_NAME", "ResNet"])
    assert cfg.model.arch == "slowonly"
    assert cfg.model.arch in cfg.model.single_pathway_arch
    assert cfg.data.input_channel_num == [3]
    check_recipe(cfg)


def test_a_model_name_that_the_architecture_does_not_have_is_warned_of(caplog):
    cfg = load_recipe(None, ["MODEL.MODEL_NAME", "MViT"])
    assert cfg.model.model_name == "SlowFast"
    assert "MODEL.MODEL_NAME MViT has no effect" in warnings_of(caplog)[0]


def test_the_heads_crop_follows_the_training_crop_unless_it_is_given():
    crops = ["DATA.TRAIN_CROP_SIZE", "128"]
    cfg = load_recipe(None, crops)
    assert cfg.data.crop_size == 128
    check_recipe(cfg)
    with pytest.raises(ValueError, match=r"DATA\.CROP_SIZE 224 .* DATA\.TRAIN_CROP_SIZE is 128"):
        check_recipe(load_recipe(None, [*crops, "DATA.CROP_SIZE", "224"]))


def test_nccl_on_the_cpu_becomes_gloo_with_one_warning(caplog):
    assert load_recipe(None, ["NUM_GPUS", "0", "DIST_BACKEND", "nccl"]).dist_backend == "gloo"
    assert len(warnings_of(caplog)) == 1
    assert load_recipe(None, ["DIST_BACKEND", "nccl"]).dist_backend == "nccl"


# Checks.


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("TEST.NUM_SPATIAL_CROPS 2", "use 1 or 3"),
        ("SOLVER.LR_POLICY exp", "use cosine or steps_with_relative_lrs"),
        ("MODEL.ARCH x3d", "MODEL.ARCH 'x3d' is not known"),
        ("DATA.ENSEMBLE_METHOD mean", "use sum or max"),
        ("TRAIN.BATCH_SIZE 0", "TRAIN.BATCH_SIZE must be 1 or more"),
        ("DATA_LOADER.NUM_WORKERS -1", "NUM_WORKERS must be 0 or more, or auto, not -1"),
        ("MULTIGRID.EPOCH_FACTOR 0", "MULTIGRID.EPOCH_FACTOR must be above 0"),
        ("MULTIGRID.BN_BASE_SIZE 0", "MULTIGRID.BN_BASE_SIZE must be 1 or more"),
        ("MULTIGRID.SIZE_DIVISOR 0", "MULTIGRID.SIZE_DIVISOR must be 1 or more, not 0"),
        ("MULTIGRID.SIZE_DIVISOR 256", "MULTIGRID.SIZE_DIVISOR 256 is more than DATA.TRAIN_CROP"),
        ("MODEL.LABEL_SMOOTHING 1.0", "MODEL.LABEL_SMOOTHING lies in [0, 1), not 1.0; 0 is off"),
        ("MODEL.EMA_DECAY -0.1", "MODEL.EMA_DECAY lies in [0, 1), not -0.1; 0 is off"),
        ("SOLVER.ACCUMULATION_STEPS 0", "SOLVER.ACCUMULATION_STEPS must be 1 or more"),
        ("DATA.MAX_BAD_FRACTION 5", "DATA.MAX_BAD_FRACTION lies in [0, 1]"),
        ("SOLVER.MAX_EPOCH 30 SOLVER.WARMUP_EPOCHS 34", "shorten the warm-up"),
        ("SOLVER.CLIP_GRAD_VAL 1 SOLVER.CLIP_GRAD_L2NORM 1", "set the other to None"),
        ("DATA.TRAIN_CROP_SIZE 16", "below 32 pixels"),
        ("DATA.TEST_CROP_SIZE 192", "set it to 224 or more"),
        ("MODEL.NUM_CLASSES 1", "give the videos of at least one class more"),
        ("DATA.TRAIN_JITTER_SCALES [200,320]", "no shorter than DATA.TRAIN_CROP_SIZE 224"),
        ("DATA.TRAIN_JITTER_SCALES [320,256]", "DATA.TRAIN_JITTER_SCALES [320, 256]"),
        ("DATA.INPUT_CHANNEL_NUM [3]", "write DATA.INPUT_CHANNEL_NUM [3, 3]"),
        ("MODEL.ARCH tsm DATA.INPUT_CHANNEL_NUM [3,3]", "write DATA.INPUT_CHANNEL_NUM [3]"),
        ("RESNET.SPATIAL_STRIDES [[1],[2],[2],[2]]", "STRIDES [[1, 1], [2, 2], [2, 2], [2, 2]]"),
        ("MODEL.ARCH tsm RESNET.SPATIAL_STRIDES [[1,1],[2,2],[2,2],[2,2]]", "[[1], [2], [2], [2]]"),
        ("MODEL.ARCH tsm TSM.SHIFT_DIV 100", "write 64 or less, or 0 for no shift"),
        ("RESNET.TRANS_FUNC basic_transform", "use bottleneck_transform"),
        ("MULTIGRID.LONG_CYCLE_FACTORS []", "the last [1, 1]"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[0.5,0.5]]", "the last [1, 1]"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [0.5,1]", "the last [1, 1]"),
        ("MULTIGRID.LONG_CYCLE_FACTORS [[2,1],[1,1]]", "factors in (0, 1]"),
        ("MULTIGRID.SHORT_CYCLE_FACTORS []", "MULTIGRID.SHORT_CYCLE False"),
        ("MULTIGRID.SHORT_CYCLE_FACTORS [0.5,0]", "factors in (0, 1]"),
        ("NUM_GPUS -1", "NUM_GPUS 0 is the CPU"),
        ("TRAIN.CHECKPOINT_TYPE onnx", "TRAIN.CHECKPOINT_TYPE 'onnx' is not known; use pytorch or"),
        ("TEST.CHECKPOINT_TYPE Caffe2", "TEST.CHECKPOINT_TYPE 'Caffe2' is not known; use pytorch"),
        ("DATA.NUM_FRAMES 4", "SLOWFAST.ALPHA 1, 2 or 4 would work"),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(overrides, message):
    with pytest.raises(ValueError) as caught:
        check_recipe(load_recipe(None, overrides.split()))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "rates", "message"),
    [
        ("[5,10]", "[1,0.1]", "write [0, 5, 10]"),
        ("[0,10,10]", "[]", "must ascend"),
        ("[0,25,10]", "[1,0.1,0.01]", "must ascend and end before SOLVER.MAX_EPOCH 20"),
        ("[0,10,21]", "[1,0.1,0.01]", "must ascend and end before SOLVER.MAX_EPOCH 20"),
        ("[20]", "[1]", "write [0, 20]"),
        ("[0,10,15]", "[1,0.1]", "2 rates for the 3 stages"),
        ("['a']", "[1]", "SOLVER.STEPS is a list of numbers"),
        ("[0]", "['a']", "SOLVER.LRS is a list of numbers"),
    ],
)
def test_steps_and_rates_must_agree(steps, rates, message):
    policy = ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "SOLVER.MAX_EPOCH", "20"]
    cfg = load_recipe(None, [*policy, "SOLVER.STEPS", steps, "SOLVER.LRS", rates])
    with pytest.raises(ValueError) as caught:
        check_recipe(cfg)
    assert message in str(caught.value)


def test_steps_without_a_stepwise_policy_are_warned_of(caplog):
    check_recipe(load_recipe(None, ["SOLVER.STEPS", "[0, 10]"]))
    assert "SOLVER.STEPS [0, 10] has no effect" in warnings_of(caplog)[0]


def test_caffe2_checkpoints_are_a_known_type():
    keys = ["TRAIN.CHECKPOINT_TYPE", "caffe2", "TEST.CHECKPOINT_TYPE", "caffe2"]
    check_recipe(load_recipe(None, keys))


def test_the_global_batch_divides_over_the_processes():
    cfg = load_recipe(None, ["TRAIN.BATCH_SIZE", "6", "NUM_SHARDS", "2"])
    for processes in (1, 2, 3, 4, 6, 12):
        check_recipe(cfg, processes)
    with pytest.raises(ValueError, match=r"global batch of 12 clips .* set TRAIN.BATCH_SIZE 10,"):
        check_recipe(cfg, 5)


def test_detection_says_what_to_install_or_that_it_is_not_trained(monkeypatch):
    cfg = load_recipe(None, ["DETECTION.ENABLE", "True"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"DETECTION\.ENABLE.*github\.com/facebookresearch"):
        check_recipe(cfg)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(ValueError, match="classification only"):
        check_recipe(cfg)


# Frames and pathways.

QUARTER_HALF_ONE = (0.25, 0.5, 1.0)


@pytest.mark.parametrize("frames", [16, 32, 64])
def test_the_papers_clips_fit_alpha_4(frames):
    check_frames("slowfast", frames, 4, QUARTER_HALF_ONE)


def test_the_long_cycle_is_checked_only_where_it_runs():
    frames = ["DATA.NUM_FRAMES", "8", "SLOWFAST.ALPHA", "8"]
    check_recipe(load_recipe(None, frames))
    with pytest.raises(ValueError, match="clips of 2, 4 and 8 frames"):
        check_recipe(load_recipe(None, [*frames, "MULTIGRID.LONG_CYCLE", "True"]))


def test_frames_that_do_not_fit_say_which_would():
    with pytest.raises(ValueError) as caught:
        check_frames("slowfast", 16, 8, QUARTER_HALF_ONE)
    assert "DATA.NUM_FRAMES 32 or SLOWFAST.ALPHA 1, 2 or 4 would work" in str(caught.value)
    with pytest.raises(ValueError, match=r"i3d needs 2 at least; DATA\.NUM_FRAMES 6 would work"):
        check_frames("i3d", 4, 8, QUARTER_HALF_ONE)
    for arch in ("slowonly", "c2d_nopool", "i3d_nopool"):
        check_frames(arch, 4, 8, QUARTER_HALF_ONE)


@given(frames=st.integers(1, 80), alpha=st.integers(1, 16))
def test_frames_that_pass_feed_both_sides_of_the_fusion(frames, alpha):
    """The slow pathway takes every alpha-th frame; the fusing convolution strides by alpha."""
    try:
        check_frames("slowfast", frames, alpha)
    except ValueError:
        assert len(range(0, frames, alpha)) != frames // alpha
    else:
        assert len(range(0, frames, alpha)) == frames // alpha >= 1


def test_lists_of_the_hosts_stages_follow_the_pathways():
    cfg = load_recipe(None, ["DATA.NUM_FRAMES", 32])
    assert cfg.resnet.num_block_temp_kernel == [[3, 3], [4, 4], [6, 6], [3, 3]]
    assert cfg.nonlocal_.location == [[[], []]] * 4
    assert load_recipe(None, ["MODEL.ARCH", "c2d"]).resnet.spatial_strides == [[1], [2], [2], [2]]


def test_a_list_without_an_entry_for_each_pathway_says_what_to_write():
    cfg = load_recipe(None, ["RESNET.SPATIAL_STRIDES", "[[1], [2], [2], [2]]"])
    with pytest.raises(ValueError, match=r"write .*SPATIAL_STRIDES \[\[1, 1\], \[2, 2\]"):
        check_recipe(cfg)


def test_bn_over_fewer_clips_than_asked_for_is_said(caplog):
    base = ["TRAIN.BATCH_SIZE", 4, "DATA.NUM_FRAMES", 32, "NUM_GPUS", 0]
    check_recipe(load_recipe(None, [*base, "BN.GROUP_SIZE", 8]))
    check_recipe(load_recipe(None, [*base, "MULTIGRID.SHORT_CYCLE", True]))
    check_recipe(load_recipe(None, base))
    messages = [record.getMessage() for record in caplog.records if "global batch" in record.msg]
    assert [message.split(" is more")[0] for message in messages] == [
        "BN.GROUP_SIZE 8",
        "MULTIGRID.BN_BASE_SIZE 8",
    ]
