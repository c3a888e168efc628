"""Tests of PySlowFast's MViT with clips of any shape, on the small MViT of tests/later_release."""

from __future__ import annotations

import copy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from fvcore.common.config import CfgNode
from slowfast.config.defaults import get_cfg
from torch import nn
from torch.nn import functional as F

from multigrid import Shape
from multigrid.integrations.pyslowfast import PySlowFastMultigrid, add_multigrid_config
from multigrid.integrations.pyslowfast_schedule import schedule_of
from multigrid.positions import convert_mvit

_spec = spec_from_file_location(
    "later_mvit", Path(__file__).parents[2] / "later_release" / "slowfast" / "mvit.py"
)
assert _spec is not None
assert _spec.loader is not None
later = module_from_spec(_spec)
_spec.loader.exec_module(later)
KEYS = """
MULTIGRID: {LONG_CYCLE: True, SHORT_CYCLE: True}
TRAIN: {BATCH_SIZE: 4}
DATA: {NUM_FRAMES: 16, SAMPLING_RATE: 2, TRAIN_JITTER_SCALES: [36, 40], TRAIN_CROP_SIZE: 32,
       INPUT_CHANNEL_NUM: [3]}
SOLVER: {BASE_LR: 0.1, LR_POLICY: cosine, MAX_EPOCH: 400}
MODEL: {ARCH: mvit, NUM_CLASSES: 5, DROPOUT_RATE: 0.0, SINGLE_PATHWAY_ARCH: [mvit]}
"""
# What the recipes of upstream's MViTv2-S (16 frames, stride 4) say.
SMALL_V2 = {
    "PATCH_STRIDE": "(2, 4, 4)",
    "DEPTH": 16,
    "POOL_KV_STRIDE_ADAPTIVE": [1, 8, 8],
    "POOL_Q_STRIDE": [[i, 1, *([2, 2] if i in (1, 3, 14) else [1, 1])] for i in range(16)],
}

pytestmark = pytest.mark.filterwarnings("ignore:the training ends", "ignore:the baseline has")


def new_config(*pairs: object, **mvit: object) -> CfgNode:
    cfg = get_cfg()
    cfg.BN.NORM_TYPE = "batchnorm"
    cfg.MVIT = CfgNode(copy.deepcopy(later.DEFAULTS) | mvit)
    add_multigrid_config(cfg)
    cfg.merge_from_other_cfg(CfgNode(CfgNode.load_cfg(KEYS)))
    cfg.merge_from_list(list(pairs))
    return cfg


def new_model(cfg: CfgNode) -> nn.Module:
    torch.manual_seed(0)
    return later.MViT(cfg).eval()


def clips(frames: int, crop: int) -> torch.Tensor:
    return torch.randn(2, 3, frames, crop, crop, generator=torch.Generator().manual_seed(1))


# --- the schedule


def test_a_model_name_says_whether_a_model_is_an_mvit():
    """Some recipes of MViT have another MODEL.ARCH, and other models have MODEL.ARCH mvit."""
    for name, arch, crops in (("MViT", "slow", {16, 24, 32}), ("Own", "mvit", {16, 23, 32})):
        cfg = new_config("MODEL.ARCH", arch)
        cfg.MODEL.MODEL_NAME = name
        assert {shape.crop for shape in schedule_of(cfg, 1000).shapes} == crops


def test_crops_are_multiples_of_patches_and_pools_and_there_are_no_bn_groups():
    cfg = new_config(
        "DATA.TRAIN_CROP_SIZE", 224, "DATA.TRAIN_JITTER_SCALES", [256, 320], **SMALL_V2
    )
    schedule = schedule_of(cfg, 1000)
    assert {shape.crop for shape in schedule.shapes} == {128, 160, 224}, "32 = 4 pixels × 8 patches"
    assert {shape.frames for shape in schedule.shapes} == {4, 8, 16}
    assert {size for phase in schedule.phases for size in phase.bn_group_sizes} == {None}
    finer = new_config(
        *("DATA.TRAIN_CROP_SIZE", 224, "DATA.TRAIN_JITTER_SCALES", [256, 320]),
        *("MULTIGRID.SIZE_DIVISOR", 64),
        **SMALL_V2,
    )
    assert {shape.crop for shape in schedule_of(finer, 1000).shapes} == {128, 224}


@pytest.mark.parametrize(
    ("mvit", "needed"),
    [
        ({}, 8),  # patches of 4, and pools of 2 in all layers
        ({"POOL_KV_STRIDE_ADAPTIVE": None, "POOL_KV_STRIDE": [[1, 1, 6, 6]]}, 24),
        ({"POOL_KV_STRIDE_ADAPTIVE": None, "POOL_Q_STRIDE": []}, 4),
        ({"PATCH_STRIDE": [2, 8, 8]}, 16),
    ],
)
def test_another_divisor_is_refused_with_the_right_one(mvit, needed):
    with pytest.raises(ValueError, match=rf"Set MULTIGRID.SIZE_DIVISOR {needed}$"):
        schedule_of(new_config("MULTIGRID.SIZE_DIVISOR", 7, **mvit), 1000)


# --- the model


@pytest.mark.parametrize("mvit", [{}, {"SEP_POS_EMBED": True}, {"USE_ABS_POS": False}], ids=str)
def test_a_converted_mvit_is_the_model_of_each_shape_with_interpolated_tables(mvit):
    cfg = new_config(**mvit)
    model = new_model(cfg)
    expected = model([clips(16, 32)])
    parameters = dict(model.named_parameters())
    assert convert_mvit(model) is model
    assert torch.equal(model([clips(16, 32)]), expected)
    for frames, crop in ((4, 16), (8, 24), (16, 48)):
        small = new_config("DATA.NUM_FRAMES", frames, "DATA.TRAIN_CROP_SIZE", crop, **mvit)
        alone = new_model(small)
        resized = {
            name: resize(name, value, alone.state_dict()[name].shape, (8, 8, 8), alone.patch_dims)
            for name, value in model.state_dict().items()
        }
        alone.load_state_dict(resized)
        out = convert_mvit(copy.deepcopy(model))([clips(frames, crop)])
        assert torch.allclose(model([clips(frames, crop)]), alone([clips(frames, crop)]), atol=1e-5)
        assert torch.equal(model([clips(frames, crop)]), out), "a copy is converted, too"
    assert torch.equal(model([clips(16, 32)]), expected), "nothing is left of the other shapes"
    assert [*parameters] == [name for name, _ in model.named_parameters()]
    assert all(value is parameters[name] for name, value in model.named_parameters())


def resize(name, table, shape, base, sides):
    """Interpolate a table of positions by torch's functions for pictures."""
    if table.shape == shape:
        return table
    if name.endswith("table"):
        return F.interpolate(table.T[None], shape[0], mode="linear")[0].T
    axes = {"pos_embed": (0, 1, 2), "pos_embed_spatial": (1, 2), "pos_embed_temporal": (0,)}[name]
    tokens = 1 if name == "pos_embed" else 0
    maps = table[0, tokens:].T.unflatten(1, [base[axis] for axis in axes])
    mode = ("linear", "bilinear", "trilinear")[len(axes) - 1]
    small = F.interpolate(maps[None], [sides[axis] for axis in axes], mode=mode)
    return torch.cat((table[:, :tokens], small.flatten(2).transpose(1, 2)), 1)


def test_tables_learn_from_small_clips_and_return_after_an_error():
    model = convert_mvit(new_model(new_config()))
    table = model.pos_embed
    model([clips(4, 16)]).square().sum().backward()
    used = table.grad[0].abs().sum(1) > 0
    assert used[0], "the class token"
    assert used[1:].sum() == 4 * 8 * 8, "two rows beside each of 2, 4 and 4 places"
    with pytest.raises(RuntimeError):
        model([clips(4, 16)[:, :1]])
    assert model.pos_embed is table


def test_convert_prepares_an_mvit_for_every_shape_and_refuses_half_patches():
    multigrid = PySlowFastMultigrid(new_config(), 1000)
    model = multigrid.convert(new_model(new_config()))
    for shape in multigrid.schedule.shapes:
        assert model([clips(shape.frames, shape.crop)]).shape == (2, 5)
    odd = PySlowFastMultigrid(new_config("MULTIGRID.LONG_CYCLE_FACTORS", [[0.2, 1.0]]), 1000)
    assert Shape(20, 3, 32) in odd.schedule.shapes
    with pytest.raises(ValueError, match=r"clips of 3 frames .* patches of 2 frames"):
        odd.convert(new_model(new_config()))


def test_the_patches_of_a_clip_by_hand():
    """Patches have 2 frames of 4 × 4 pixels."""
    model = convert_mvit(new_model(new_config()))
    assert model.patches(16, 48) == (8, 12, 12)
    for frames, crop in ((15, 48), (16, 46)):
        with pytest.raises(ValueError, match=rf"clips of {frames} frames of {crop}² pixels cannot"):
            model.patches(frames, crop)


def test_an_mvit_of_an_earlier_release_is_refused():
    model = new_model(new_config())
    del model.T
    with pytest.raises(ValueError, match=r"has no attribute T, so it cannot be converted"):
        convert_mvit(nn.Sequential(model))


def test_an_mvit_for_pictures_is_left_alone():
    model = new_model(new_config())
    model.patch_embed.proj = nn.Conv2d(3, 32, 7, 4, 3)
    assert type(convert_mvit(model)) is later.MViT
