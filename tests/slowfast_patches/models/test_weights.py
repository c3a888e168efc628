"""Loading of weights from image models, later releases, Caffe2 and this package."""

import copy
import json
import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
NONLOCAL = ("NONLOCAL.LOCATION", [[[]], [[1, 3]], [[1, 3, 5]], [[]]])
KEYS = {
    "slowfast": ("MODEL.ARCH", "slowfast", *TWO),
    "slowonly": ("MODEL.ARCH", "slowonly"),
    "c2d": ("MODEL.ARCH", "c2d"),
    "i3d": ("MODEL.ARCH", "i3d"),
    "i3d-nl": ("MODEL.ARCH", "i3d", *NONLOCAL),
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


def features(model: nn.Module, clip: Tensor) -> Tensor:
    """Return the input of the head of a model with one pathway."""
    found: list[Tensor] = []
    model.s5.register_forward_hook(lambda module, inputs, outputs: found.append(outputs[0]))
    with torch.no_grad():
        model.eval()([clip])
    return found[0]


def test_a_clip_that_stands_still_has_the_features_of_its_frame(
    resnet, image_features, tmp_path: Path
):
    """This is exact for C2D, whose convolutions do not reach beyond the ends of a clip."""
    model = made("c2d")
    load_weights(model, saved(resnet(), tmp_path), inflate=True)
    frame = torch.randn(2, 3, 64, 64)
    found = features(model, frame[:, :, None].expand(-1, -1, 8, -1, -1).clone())
    expected = image_features(resnet(), frame)
    assert expected.std() > 0.1
    for t in range(found.shape[2]):
        torch.testing.assert_close(found[:, :, t], expected, rtol=1e-4, atol=1e-4)


def test_an_image_model_fills_every_pathway_there_is(resnet, report, tmp_path: Path):
    model = made("i3d-nl")
    before = tensors_of(model)
    load_weights(model, saved(resnet(), tmp_path), inflate=True)
    kept = {k for k, v in tensors_of(model).items() if torch.equal(v, before[k])}
    assert kept == {k for k in before if "nonlocal" in k or k.startswith("head")}
    said = report()
    assert "265 tensors loaded, 0 partly, 62 kept at their initial values, 2 unused" in said
    assert "repeated along time: 53 convolutions" in said
    assert "nonlocal, not in the file: 60 tensors" in said
    assert said.endswith("unused: fc.weight and fc.bias")


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
    assert "257 tensors loaded, 8 partly," in said
    assert "s2.pathway0_res0.branch1.weight (8 of 12 input channels)" in said
    assert re.search(r"pathway1, not in the file: 265 tensors: .* and 262 more", said)
    assert "fuse, not in the file: 20 tensors" in said
    # PySlowFast's own fusion puts the slow pathway's channels where their weights are.
    slow, fast = torch.rand(1, 8, 2, 4, 4) + 1, torch.rand(1, 2, 4, 4, 4)
    fused, _ = model.eval().s1_fuse([slow, fast])
    with torch.no_grad():
        model.s2.pathway0_res0.branch1.weight[:, 8:] = 0
        found = model.s2.pathway0_res0.branch1(fused)
    expected = F.conv2d(slow[:, :, 0], resnet()["layer1.0.downsample.0.weight"])
    torch.testing.assert_close(found[:, :, 0], expected)


def test_an_image_model_is_not_inflated_unasked(resnet, tmp_path: Path):
    model, path = made("i3d"), saved(resnet(), tmp_path)
    with pytest.raises(ValueError, match=r"is 2-D. Set TRAIN\.CHECKPOINT_INFLATE True"):
        load_weights(model, path)
    with pytest.raises(ValueError, match=r"is 2-D. To .* change TEST\.CHECKPOINT"):
        load_weights(model, path, complete=True, section="TEST")


def test_resnet_18_is_refused(resnet, tmp_path: Path):
    basic = {k: v for k, v in resnet().items() if ".conv3" not in k and ".bn3" not in k}
    with pytest.raises(ValueError, match="18 or 34 layers"):
        load_weights(made("i3d"), saved(basic, tmp_path), inflate=True)


# Checkpoints of PyTorch.


@pytest.mark.parametrize("where", ["model_state", "state_dict", "model", None])
@pytest.mark.parametrize("prefix", ["", "module.model."])
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
    assert folded["s1.bn.num_batches_tracked"] == 5
    assert not [name for name in folded if ".bn.bn" in name or "split" in name]


def test_statistics_that_are_no_splits_are_left_as_they_are():
    state = {"s1.bn.weight": torch.ones(2), "s1.bn.bn.running_mean": torch.zeros(3)}
    state["s1.bn.bn.running_var"] = torch.ones(3)
    assert host_names(state).tensors.keys() == state.keys()


def test_a_head_of_other_classes_is_left_and_said(report, caplog, tmp_path: Path):
    theirs, model = made("i3d", "MODEL.NUM_CLASSES", 174, seed=2), made("i3d")
    before = tensors_of(model)
    path = saved({"model_state": theirs.state_dict()}, tmp_path)
    load_weights(model, path, inflate=True)
    assert "TRAIN.CHECKPOINT_INFLATE True has no effect" in caplog.text
    head = {key: value for key, value in before.items() if key.startswith("head")}
    assert_same(model, tensors_of(theirs) | head)
    assert "265 tensors loaded, 0 partly, 2 kept" in report()
    assert "head, of shape (174, 256) in the file, (4, 256) in the model: 1 tensors" in report()
    with pytest.raises(ValueError, match=r"\(174, 256\) in the file, \(4, 256\) in the model"):
        load_weights(model, path, complete=True, section="TEST")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"weight": torch.ones(2, 3)}, "bias: not in the file. Give the recipe"),
        (
            {"weight": torch.ones(2, 3), "bias": torch.zeros(2), "x": torch.ones(1)},
            "x: not in the model",
        ),
        (
            {"weight": torch.ones(2, 3), "bias": torch.zeros(5)},
            r"bias: of shape \(5,\) in the file, \(2,\) in the model",
        ),
    ],
)
def test_a_test_takes_every_weight_or_none(state: dict, said: str, tmp_path: Path):
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(ValueError, match=said):
        load_weights(model, saved(state, tmp_path), complete=True, section="TEST")
    assert torch.equal(model.weight, before)


def test_weights_of_which_none_fits_are_refused(tmp_path: Path):
    path = saved({"backbone.weight": torch.ones(5, 5)}, tmp_path)
    with pytest.raises(ValueError, match=r"no tensor fits .*TRAIN\.CHECK"):
        load_weights(nn.Linear(2, 3), path)


# Caffe2.


def caffe2_name(name: str) -> str:
    """Convert a name of PySlowFast to the name in Caffe2's models."""
    parts = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}
    blocks = {"s2": 2, "s3": 3, "s4": 5, "s5": 2}
    for pattern, new in (
        (r"head\.projection\.(w|b).*", r"pred_\1"),
        (r"s(\d)\.pathway0_nonlocal(\d)\.conv_(\w+)\.(w|b).*", r"nonlocal_conv\1_\2_\3_\4"),
        (r"s(\d)\.pathway0_nonlocal(\d)\.bn\.(\w+)", r"nonlocal_conv\1_\2_bn_{\3}"),
        (r"s1\.pathway(\d)_stem\.conv.*", r"<\1>conv1_w"),
        (r"s1\.pathway(\d)_stem\.bn\.(\w+)", r"<\1>res_conv1_bn_{\2}"),
        (r"s1_fuse\.conv.*", "t_pool1_subsample_w"),
        (r"s1_fuse\.bn\.(\w+)", r"t_pool1_subsample_bn_{\1}"),
        (r"(s\d)_fuse\.conv.*", r"t_res[\1]_branch2c_bn_subsample_w"),
        (r"(s\d)_fuse\.bn\.(\w+)", r"t_res[\1]_branch2c_bn_subsample_bn_{\2}"),
        (r"s(\d)\.pathway(\d)_res(\d)\.branch(1|2\.\w)\.weight", r"<\2>res\1_\3_branch\4_w"),
        (
            r"s(\d)\.pathway(\d)_res(\d)\.branch(1|2\.\w)_bn\.(\w+)",
            r"<\2>res\1_\3_branch\4_bn_{\5}",
        ),
    ):
        if match := re.fullmatch(pattern, name):
            new = match.expand(new).replace("<0>", "").replace("<1>", "t_").replace("2.", "2")
            new = re.sub(r"\{(\w+)\}", lambda m: parts[m[1]], new)
            return re.sub(r"\[(s(\d))\]", lambda m: f"{m[2]}_{blocks[m[1]]}", new)
    raise AssertionError(name)


def caffe2_file(model: nn.Module, folder: Path) -> Path:
    """Write a model as a Caffe2 checkpoint, with the blobs of its optimizer."""
    blobs = {caffe2_name(k): v.numpy() for k, v in tensors_of(model).items()}
    blobs |= {f"{k}_momentum": np.zeros_like(v) for k, v in blobs.items() if k.endswith("_w")}
    blobs |= {"lr": np.float32(0.1), "model_iter": np.array([112000])}
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    return path


@pytest.mark.parametrize("arch", ["slowfast", "i3d-nl"])
def test_a_caffe2_file_is_the_model_that_it_was_made_of(arch: str, report, tmp_path: Path):
    theirs, model = made(arch, seed=2), made(arch)
    load_weights(model, caffe2_file(theirs, tmp_path), kind="caffe2", complete=True)
    assert_same(model, tensors_of(theirs))
    assert "0 kept at their initial values, 0 unused" in report()


# Whole runs.


def test_a_caffe2_file_is_tested_as_it_is(
    train: Callable[..., Path], tiny_config: Callable, one_block, one_block_keys, tmp_path: Path
):
    with one_block():
        path = caffe2_file(build_model(tiny_config(tmp_path, *one_block_keys)), tmp_path)
        keys = ("TRAIN.ENABLE", False, "TEST.CHECKPOINT_FILE_PATH", path, *one_block_keys)
        train(tmp_path / "run", *keys, "TEST.CHECKPOINT_TYPE", "caffe2")
    assert "0 partly, 0 kept" in (tmp_path / "run" / "test.log").read_text()
    assert json.loads((tmp_path / "run" / "test.json").read_text())["top5"] >= 0
