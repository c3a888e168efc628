"""Loading of weights from image models, TSM's authors, later releases, Caffe2 and this package."""

import copy
import logging
import pickle
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.config import load_recipe
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.models.weights.names import host_names

WIDTH = 8
THIN = (
    *("RESNET.WIDTH_PER_GROUP", WIDTH, "DATA.NUM_FRAMES", 8, "DATA.TRAIN_CROP_SIZE", 64),
    *("DATA.TEST_CROP_SIZE", 64, "DATA.TRAIN_JITTER_SCALES", [64, 80]),
    *("SLOWFAST.ALPHA", 2, "SLOWFAST.BETA_INV", 4),
)


@cache
def built(arch: str, classes: int) -> nn.Module:
    return build_model(load_recipe(None, ["MODEL.ARCH", arch, "MODEL.NUM_CLASSES", classes, *THIN]))


def made(arch: str, classes: int = 4) -> nn.Module:
    """Build a thin model whose tensors are all random, with positive variances."""
    model = copy.deepcopy(built(arch, classes))
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5)
    return model


def same_tensors(model: nn.Module, other: dict[str, Tensor]) -> set[str]:
    return {name for name, value in model.state_dict().items() if torch.equal(value, other[name])}


def saved(content: object, folder: Path) -> Path:
    path = folder / "weights.pth"
    torch.save(content, path)
    return path


def block(channels: int, inner: int) -> nn.Module:
    sizes = {"1": (channels, inner, 1), "2": (inner, inner, 3), "3": (inner, 4 * inner, 1)}
    parts = {f"conv{n}": nn.Conv2d(*size, bias=False) for n, size in sizes.items()}
    parts |= {f"bn{n}": nn.BatchNorm2d(size[1]) for n, size in sizes.items()}
    if channels != 4 * inner:
        down = nn.Conv2d(channels, 4 * inner, 1, bias=False)
        parts["downsample"] = nn.Sequential(down, nn.BatchNorm2d(4 * inner))
    return nn.ModuleDict(parts)


@cache
def resnet() -> dict[str, Tensor]:
    """Return the state of torchvision's thin ResNet-50, without counters as in old files."""
    parts = {"conv1": nn.Conv2d(3, WIDTH, 7, bias=False), "bn1": nn.BatchNorm2d(WIDTH)}
    channels = WIDTH
    for stage, count in enumerate((3, 4, 6, 3)):
        inner = WIDTH * 2**stage
        rest = (block(4 * inner, inner) for _ in range(count - 1))
        parts[f"layer{stage + 1}"] = nn.Sequential(block(channels, inner), *rest)
        channels = 4 * inner
    state = nn.ModuleDict(parts | {"fc": nn.Linear(channels, 1000)}).state_dict()
    return {name: torch.rand(v.shape) for name, v in state.items() if v.is_floating_point()}


# Image models.


def test_a_clip_that_stands_still_has_the_features_of_its_frame(tmp_path: Path, caplog):
    """Each kernel is divided by its number of frames. The file has everything except the head."""
    model, path = made("i3d"), saved(resnet(), tmp_path)
    with pytest.raises(ValueError, match=r"is 2-D. Set TRAIN\.CHECKPOINT_INFLATE True"):
        load_weights(model, path)
    caplog.set_level(logging.INFO)
    load_weights(model, path, inflate=True)
    assert "265 tensors loaded, 53 repeated along time" in caplog.text
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


def test_the_slow_pathway_takes_the_channels_that_an_image_model_has(tmp_path: Path, caplog):
    model = made("slowfast")
    before = copy.deepcopy(model.state_dict())
    caplog.set_level(logging.INFO)
    load_weights(model, saved(resnet(), tmp_path), inflate=True)
    kept = same_tensors(model, before)
    assert kept == {k for k in before if re.search("pathway1|fuse|head|num_batches", k)}
    # Stage 3 sees 32 channels of the slow pathway, then 16 of the fast one's 8.
    name = "s3.pathway0_res0.branch2.a.weight"
    after = model.state_dict()[name]
    assert after.shape == (16, 48, 1, 1, 1)
    torch.testing.assert_close(after[:, :32, 0], resnet()["layer2.0.conv1.weight"])
    assert torch.equal(after[:, 32:], before[name][:, 32:])
    for said in (
        "257 tensors loaded, 53 repeated along time",
        " loaded for 8 of 12 input channels: s2.pathway0_res0",
        "2 not in the model: fc.weight and fc.bias",
    ):
        assert said in caplog.text


def test_inflation_without_effect_is_said(tmp_path: Path, caplog):
    class Net(nn.Module):
        def __init__(self, kernel: nn.Module) -> None:
            super().__init__()
            self.conv = kernel

    flat, deep = Net(nn.Conv2d(3, 4, 1)), Net(nn.Conv3d(3, 4, 1))
    for source, inflate, said in ((deep, True, True), (deep, False, False), (flat, True, False)):
        caplog.clear()
        load_weights(deep, saved(source.state_dict(), tmp_path), inflate=inflate)
        assert ("CHECKPOINT_INFLATE True has no effect" in caplog.text) == said


def test_resnet_18_is_refused(tmp_path: Path):
    basic = {k: v for k, v in resnet().items() if ".conv3" not in k and ".bn3" not in k}
    with pytest.raises(ValueError, match="18 or 34 layers"):
        load_weights(made("i3d"), saved(basic, tmp_path), inflate=True)


@pytest.mark.parametrize(
    ("where", "prefix"), [("model_state", ""), ("state_dict", "module."), (None, "module.model.")]
)
def test_a_state_dict_is_found_where_it_is_and_whatever_wraps_it(where, prefix, tmp_path: Path):
    state = {f"{prefix}weight": torch.ones(3, 2), f"{prefix}bias": torch.zeros(3)}
    content = {where: state, "epoch": 7, "optimizer_state": {}, "cfg": ""} if where else state
    model = nn.Linear(2, 3)
    load_weights(model, saved(content, tmp_path), complete=True)
    assert torch.equal(model.weight, torch.ones(3, 2))


@pytest.mark.parametrize("name", ["model", "layer1"])
def test_a_registered_model_may_have_the_names_of_wrappers_and_of_torchvision(name, tmp_path):
    theirs, model = (nn.ModuleDict({name: nn.Sequential(block(8, 4))}) for _ in range(2))
    load_weights(model, saved(theirs.state_dict(), tmp_path), complete=True)
    assert same_tensors(model, theirs.state_dict()) == theirs.state_dict().keys()


def test_the_statistics_of_three_splits_worked_out():
    """In channel 0 the means 0, 3 and 3 have mean 2 and variance 2. In channel 1 all are 10."""
    state = {
        "s1.bn.weight": torch.ones(2),
        "s1.bn.bias": torch.zeros(2),
        "s1.bn.bn.running_mean": torch.zeros(2),
        "s1.bn.bn.running_var": torch.ones(2),
        "s1.bn.split_bn.running_mean": torch.tensor([0.0, 10.0, 3.0, 10.0, 3.0, 10.0]),
        "s1.bn.split_bn.running_var": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 9.0]),
        "s1.bn.split_bn.num_batches_tracked": torch.tensor(5),
    }
    folded = host_names(state, ["s1.bn.weight"])
    assert folded.keys() == {
        f"s1.bn.{p}" for p in ("weight", "bias", "running_mean", "running_var")
    }
    assert folded["s1.bn.running_mean"].tolist() == [2.0, 10.0]
    assert folded["s1.bn.running_var"].tolist() == [3.0 + 2.0, 5.0 + 0.0]


def test_a_head_of_other_classes_is_left_and_said(caplog, tmp_path: Path):
    theirs, model = made("i3d", 174), made("i3d")
    path = saved({"model_state": theirs.state_dict()}, tmp_path)
    expected = theirs.state_dict() | copy.deepcopy(model.head.state_dict(prefix="head."))
    caplog.set_level(logging.INFO)
    load_weights(model, path)
    assert same_tensors(model, expected) == expected.keys()
    assert "265 tensors loaded" in caplog.text
    assert "1 of shape (174, 256) in the file, (4, 256) in the model: head" in caplog.text
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
    theirs, model = made("slowfast").state_dict(), made("slowfast")
    names = {
        "pred_w": "head.projection.weight",
        "pred_b": "head.projection.bias",
        "t_conv1_w": "s1.pathway1_stem.conv.weight",
        "res_conv1_bn_riv": "s1.pathway0_stem.bn.running_var",
        "t_res2_0_branch2b_w": "s2.pathway1_res0.branch2.b.weight",
    }
    blobs = {blob: theirs[name].numpy() for blob, name in names.items()}
    blobs |= {"lr": np.float32(0.1), "pred_w_momentum": np.zeros(9, np.float32)}
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    load_weights(model, path)
    assert same_tensors(model, theirs) >= set(names.values())


def test_a_file_that_fills_little_of_the_model_is_refused_unless_the_user_says_so(tmp_path):
    """The head does not count, because it depends on the classes of the data."""
    model = made("slowonly")
    state = model.state_dict()
    names = [name for name in state if not name.startswith("head.")]
    path = saved({name: state[name] for name in names[:7]}, tmp_path)
    with pytest.raises(
        ValueError, match=r"fills only .* of the model without its head \("
    ) as caught:
        load_weights(made("slowonly"), path, least=0.5)
    text = str(caught.value)
    assert names[-1].split(".")[0] in text or "not in the file" in text
    share = float(re.search(r"CHECKPOINT_SHARE (\S+) to", text)[1])
    load_weights(made("slowonly"), path, least=share)
    load_weights(made("slowonly"), saved({n: state[n] for n in names}, tmp_path), least=1.0)
