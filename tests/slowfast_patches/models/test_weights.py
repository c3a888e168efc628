"""Loading of weights from image models, later releases, Caffe2 and this package."""

import copy
import pickle
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.models.weights.names import host_names

pytestmark = pytest.mark.slow  # each builds several networks

WIDTH = 8
THIN = (
    *("RESNET.WIDTH_PER_GROUP", WIDTH, "MODEL.NUM_CLASSES", 4, "DATA.NUM_FRAMES", 8),
    *("DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64, "DATA.TRAIN_JITTER_SCALES", [64, 80]),
)
TWO = ("SLOWFAST.ALPHA", 2, "SLOWFAST.BETA_INV", 4)
KEYS = {
    "slowfast": ("MODEL.ARCH", "slowfast", *TWO),
    "c2d": ("MODEL.ARCH", "c2d"),
    "i3d": ("MODEL.ARCH", "i3d"),
}


def thin(name: str, *overrides: object) -> Recipe:
    return load_recipe(None, [*THIN, *KEYS[name], *overrides])


@cache
def built(name: str, *overrides: object) -> nn.Module:
    return build_model(thin(name, *overrides))


def made(name: str, *overrides: object, seed: int = 1) -> nn.Module:
    """Build a thin model whose tensors are all random, with positive variances."""
    model = copy.deepcopy(built(name, *overrides))
    torch.manual_seed(seed)
    for key, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if "bn" in key else torch.randn_like(value))
    return model


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items() if "num_batches" not in k}


def assert_same(model: nn.Module, expected: dict[str, Tensor]) -> None:
    found = model.state_dict()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, msg=key)


def saved(content: object, folder: Path) -> Path:
    path = folder / "weights.pth"
    torch.save(content, path)
    return path


# Image models.


def test_a_clip_that_stands_still_has_the_features_of_its_frame(resnet, report, tmp_path: Path):
    """Each kernel is divided by its number of frames. The file has everything except the head."""
    model = made("i3d")
    load_weights(model, saved(resnet(), tmp_path), inflate=True)
    assert "265 tensors loaded, 53 repeated along time" in report()
    after = model.state_dict()
    for name, theirs in {
        "s1.pathway0_stem.conv": "conv1",  # of 5 frames
        "s2.pathway0_res2.branch2.a": "layer1.2.conv1",  # of 3
        "s5.pathway0_res0.branch1": "layer4.0.downsample.0",  # of 1
    }.items():
        kernel = after[f"{name}.weight"]
        assert torch.equal(kernel, kernel[:, :, :1].expand_as(kernel))
        torch.testing.assert_close(kernel.sum(2), resnet()[f"{theirs}.weight"])
    for part in ("weight", "bias", "running_mean", "running_var"):
        ours = after[f"s3.pathway0_res1.branch2.c_bn.{part}"]
        assert torch.equal(ours, resnet()[f"layer2.1.bn3.{part}"])


def test_the_slow_pathway_takes_the_channels_that_an_image_model_has(
    resnet, report, tmp_path: Path
):
    model = made("slowfast")
    before = tensors_of(model)
    load_weights(model, saved(resnet(), tmp_path), inflate=True)
    after = tensors_of(model)
    kept = {k for k, v in after.items() if torch.equal(v, before[k])}
    assert kept == {k for k in before if re.search("pathway1|fuse|head", k)}
    # Stage 3 sees 32 channels of the slow pathway, then 16 of the fast one's 8.
    name = "s3.pathway0_res0.branch2.a.weight"
    assert after[name].shape == (16, 48, 1, 1, 1)
    torch.testing.assert_close(after[name][:, :32, 0], resnet()["layer2.0.conv1.weight"])
    assert torch.equal(after[name][:, 32:], before[name][:, 32:])
    said = report()
    assert "257 tensors loaded, 53 repeated along time" in said
    assert " loaded for 8 of 12 input channels: s2.pathway0_res0" in said
    assert "2 not in the model: fc.weight and fc.bias" in said


def test_an_image_model_is_not_inflated_unasked(resnet, tmp_path: Path):
    model, path = made("i3d"), saved(resnet(), tmp_path)
    with pytest.raises(ValueError, match=r"is 2-D. Set TRAIN\.CHECKPOINT_INFLATE True"):
        load_weights(model, path)


def test_resnet_18_is_refused(resnet, tmp_path: Path):
    basic = {k: v for k, v in resnet().items() if ".conv3" not in k and ".bn3" not in k}
    with pytest.raises(ValueError, match="18 or 34 layers"):
        load_weights(made("i3d"), saved(basic, tmp_path), inflate=True)


# Checkpoints of PyTorch.


@pytest.mark.parametrize(
    ("where", "prefix"), [("model_state", ""), ("state_dict", "module."), (None, "module.model.")]
)
def test_a_state_dict_is_found_where_it_is_and_whatever_wraps_it(
    where: str | None, prefix: str, tmp_path: Path
):
    state = {f"{prefix}weight": torch.ones(3, 2), f"{prefix}bias": torch.zeros(3)}
    content = {where: state, "epoch": 7, "optimizer_state": {}, "cfg": ""} if where else state
    model = nn.Linear(2, 3)
    load_weights(model, saved(content, tmp_path), complete=True)
    assert torch.equal(model.weight, torch.ones(3, 2))


def test_the_statistics_of_two_splits_worked_out():
    """In channel 0 the means 1 and 3 have mean 2 and variance 1. In channel 1 both are 10."""
    state = {
        "s1.bn.weight": torch.ones(2),
        "s1.bn.bias": torch.zeros(2),
        "s1.bn.bn.running_mean": torch.zeros(2),
        "s1.bn.bn.running_var": torch.ones(2),
        "s1.bn.split_bn.running_mean": torch.tensor([1.0, 10.0, 3.0, 10.0]),
        "s1.bn.split_bn.running_var": torch.tensor([2.0, 4.0, 4.0, 8.0]),
        "s1.bn.split_bn.num_batches_tracked": torch.tensor(5),
    }
    folded, _ = host_names(state)
    assert folded["s1.bn.running_mean"].tolist() == [2.0, 10.0]
    assert folded["s1.bn.running_var"].tolist() == [3.0 + 1.0, 6.0 + 0.0]
    assert not [name for name in folded if ".bn.bn" in name or "split" in name]


def test_a_head_of_other_classes_is_left_and_said(report, tmp_path: Path):
    theirs, model = made("i3d", "MODEL.NUM_CLASSES", 174, seed=2), made("i3d")
    before = tensors_of(model)
    path = saved({"model_state": theirs.state_dict()}, tmp_path)
    load_weights(model, path)
    head = {key: value for key, value in before.items() if key.startswith("head")}
    assert_same(model, tensors_of(theirs) | head)
    assert "265 tensors loaded" in report()
    assert "1 of shape (174, 256) in the file, (4, 256) in the model: head" in report()
    with pytest.raises(ValueError, match=r"\(174, 256\) in the file, \(4, 256\) in the model"):
        load_weights(model, path, complete=True)


def test_a_test_takes_every_weight_or_none(tmp_path: Path):
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(ValueError, match=r"bias: not in the file. Give the recipe"):
        load_weights(model, saved({"weight": torch.ones(2, 3)}, tmp_path), complete=True)
    assert torch.equal(model.weight, before)
    with pytest.raises(ValueError, match=r"no tensor fits"):
        load_weights(model, saved({"backbone.weight": torch.ones(5, 5)}, tmp_path))


# Caffe2.


def test_blobs_of_caffe2_are_found_by_their_names(tmp_path: Path):
    theirs, model = made("slowfast", seed=2), made("slowfast")
    names = {
        "pred_w": "head.projection.weight",
        "pred_b": "head.projection.bias",
        "t_conv1_w": "s1.pathway1_stem.conv.weight",
        "res_conv1_bn_riv": "s1.pathway0_stem.bn.running_var",
        "t_res2_0_branch2b_w": "s2.pathway1_res0.branch2.b.weight",
    }
    values = theirs.state_dict()
    blobs = {blob: values[name].numpy() for blob, name in names.items()}
    blobs |= {"lr": np.float32(0.1), "pred_w_momentum": np.zeros(9, np.float32)}
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    load_weights(model, path)
    assert_same(model, {name: values[name] for name in names.values()})
