"""Checkpoints of the TSM authors and image models as starts and as what is tested, in TSM."""

import json
import logging
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches.config import load_recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.models.weights.names import TSM, host_names

WIDTH, CLASSES, FRAMES = 8, 4, 8
pytestmark = pytest.mark.slow  # each builds several networks

BLOCKS = (3, 4, 6, 3)
THIN = (
    *("RESNET.WIDTH_PER_GROUP", WIDTH, "MODEL.NUM_CLASSES", CLASSES, "DATA.NUM_FRAMES", FRAMES),
    *("DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64, "DATA.TRAIN_JITTER_SCALES", [64, 80]),
)


def made(*overrides: object, arch: str = "tsm") -> nn.Module:
    torch.manual_seed(1)
    return build_model(load_recipe(None, ["MODEL.ARCH", arch, *THIN, *overrides]))


def convolution(name: str, out: int, channels: int, kernel: int) -> dict[str, Tensor]:
    spread = (2 / (channels * kernel**2)) ** 0.5
    return {f"{name}.weight": torch.randn(out, channels, kernel, kernel) * spread}


def norm(name: str, channels: int) -> dict[str, Tensor]:
    parts = ("weight", "bias", "running_mean", "running_var")
    values = {f"{name}.{part}": torch.rand(channels) * 0.2 for part in parts}
    for part in ("weight", "running_var"):
        values[f"{name}.{part}"] += 0.7
    return values | {f"{name}.num_batches_tracked": torch.tensor(7)}


@cache
def image_model(blocks: tuple[int, ...] = BLOCKS) -> dict[str, Tensor]:
    """torchvision's ResNet of bottleneck blocks, thin."""
    torch.manual_seed(0)
    state = convolution("conv1", WIDTH, 3, 7) | norm("bn1", WIDTH)
    channels = WIDTH
    for stage, count in enumerate(blocks):
        for block in range(count):
            name, inner = f"layer{stage + 1}.{block}", WIDTH * 2**stage
            state |= convolution(f"{name}.conv1", inner, channels, 1) | norm(f"{name}.bn1", inner)
            state |= convolution(f"{name}.conv2", inner, inner, 3) | norm(f"{name}.bn2", inner)
            state |= convolution(f"{name}.conv3", 4 * inner, inner, 1)
            state |= norm(f"{name}.bn3", 4 * inner)
            if block == 0:
                state |= convolution(f"{name}.downsample.0", 4 * inner, channels, 1)
                state |= norm(f"{name}.downsample.1", 4 * inner)
            channels = 4 * inner
    return state | {"fc.weight": torch.randn(1000, channels), "fc.bias": torch.randn(1000)}


def published(
    classes: int = CLASSES,
    *,
    head: str = "new_fc",
    prefix: str = "module.",
    blocks: tuple[int, ...] = BLOCKS,
    every: int = 1,
) -> dict[str, Tensor]:
    """The names of the TSM authors' files: every so many-th block of a stage shifts, 0 none."""
    state = {}
    for name, value in image_model(blocks).items():
        block = re.fullmatch(r"(layer\d\.(\d+)\.conv1)\.weight", name)
        shifts = block is not None and every > 0 and int(block[2]) % every == 0
        if not name.startswith("fc."):
            new = f"{block[1]}.net.weight" if block and shifts else name
            state[f"{prefix}base_model.{new}"] = value
    torch.manual_seed(2)
    state[f"{prefix}{head}.weight"] = torch.randn(classes, 32 * WIDTH) * 0.1
    state[f"{prefix}{head}.bias"] = torch.randn(classes)
    return state


def saved(state: dict[str, Tensor], folder: Path) -> Path:
    """As the authors' training writes it."""
    path = folder / "tsm.pth"
    extra = {"epoch": 50, "arch": "resnet50", "optimizer": {"param_groups": []}, "best_prec1": 70.6}
    torch.save({**extra, "state_dict": state}, path)
    return path


@pytest.fixture(autouse=True)
def reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def report_of(caplog: pytest.LogCaptureFixture) -> str:
    return caplog.records[-1].getMessage()


# What a file is.


def frame_scores(state: dict[str, Tensor], clips: Tensor) -> Tensor:
    """The scores of a clip (N, T, 3, H, W) as a network of images sees it: the mean of its frames'.

    A ResNet-50 of 2-D operations on (N·T, C, H, W) in evaluation, with a plain loop for the shift:
    of a block's input, the first eighth of the channels comes from the next frame, the second one
    from the frame before.
    """
    state = {k.removeprefix("module.").removeprefix("base_model."): v for k, v in state.items()}
    frames = clips.shape[1]

    def normed(name: str, x: Tensor) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(state[f"{name}.{part}"] for part in parts))

    def shifted(x: Tensor) -> Tensor:
        fold, out = x.shape[1] // 8, x.clone()
        for i in range(len(x)):
            first, last = i % frames == 0, i % frames == frames - 1
            out[i, :fold] = 0 if last else x[i + 1, :fold]
            out[i, fold : 2 * fold] = 0 if first else x[i - 1, fold : 2 * fold]
        return out

    x = F.conv2d(clips.flatten(0, 1), state["conv1.weight"], stride=2, padding=3)
    x = F.max_pool2d(F.relu(normed("bn1", x)), 3, stride=2, padding=1)
    for stage, count in enumerate(BLOCKS, 1):
        for block in range(count):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = F.conv2d(shifted(x), state[f"{name}.conv1.net.weight"])
            out = F.relu(normed(f"{name}.bn1", out))
            out = F.conv2d(out, state[f"{name}.conv2.weight"], stride=stride, padding=1)
            out = F.relu(normed(f"{name}.bn2", out))
            out = normed(f"{name}.bn3", F.conv2d(out, state[f"{name}.conv3.weight"]))
            if block == 0:
                x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
                x = normed(f"{name}.downsample.1", x)
            x = F.relu(x + out)
    scores = F.linear(x.mean((2, 3)), state["new_fc.weight"], state["new_fc.bias"])
    return scores.unflatten(0, clips.shape[:2]).mean(1)


def test_a_published_model_scores_here_what_its_2d_network_scores(tmp_path: Path):
    model = made().eval()
    model.head.act = nn.Identity()  # scores, not their softmax
    load_weights(model, saved(published(), tmp_path), complete=True, section="TEST")
    clips = torch.randn(2, FRAMES, 3, 64, 64)
    with torch.no_grad():
        expected = frame_scores(published(), clips)
        found = model([clips.transpose(1, 2)])
        backwards = model([clips.flip(1).transpose(1, 2)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    # Else the direction of the shift would not be seen.
    assert (backwards - found).abs().max() > 0.01 * expected.std()


@pytest.mark.parametrize("head", ["new_fc", "base_model.fc"])
@pytest.mark.parametrize("prefix", ["module.", ""])
def test_the_names_of_a_published_file(head: str, prefix: str):
    state = published(head=head, prefix=prefix)
    named = host_names(state)
    assert named.tensors.keys() == made().state_dict().keys()
    assert named.notes == ((f"prefix {prefix} taken off",) if prefix else ()) + (TSM,)
    kernel = named.tensors["s3.pathway0_res1.branch2.a.weight"]
    assert torch.equal(kernel[:, :, 0], image_model()["layer2.1.conv1.weight"])
    assert kernel.shape == (16, 64, 1, 1, 1)
    assert named.tensors["s2.pathway0_res0.branch1_bn.bias"].tolist() == (
        image_model()["layer1.0.downsample.1.bias"].tolist()
    )
    assert named.tensors["head.projection.bias"].shape == (CLASSES,)
    assert named.shifted is not None
    assert len(named.shifted) == sum(BLOCKS)
    assert "s5.pathway0_res2.branch2.a" in named.shifted
    assert host_names(image_model()).shifted is None


def test_what_was_loaded_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    load_weights(made(), saved(published(), tmp_path), complete=True)
    said = report_of(caplog)
    assert "the TSM authors' names" in said
    assert "267 tensors loaded, 0 partly, 0 kept at their initial values, 0 unused" in said
    assert "shifts" not in said


def test_a_classifier_of_other_classes_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model, path = made(), saved(published(174), tmp_path)
    before = model.head.projection.weight.clone()
    load_weights(model, path)
    assert torch.equal(model.head.projection.weight, before)
    assert torch.equal(model.s1.pathway0_stem.bn.bias, image_model()["bn1.bias"])
    assert "265 tensors loaded, 0 partly, 2 kept" in report_of(caplog)
    assert "head.projection.weight: 174 classes there, 4 here" in report_of(caplog)
    with pytest.raises(ValueError, match="174 classes there, 4 here and 1 more; give the recipe"):
        load_weights(model, path, complete=True, section="TEST")


def test_inflating_one_has_no_effect_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    load_weights(made(), saved(published(), tmp_path), inflate=True)
    assert "TRAIN.CHECKPOINT_INFLATE True has no effect" in caplog.text


# Other models than ours.


@pytest.mark.parametrize(
    ("every", "overrides", "arch", "counts"),
    [
        (0, (), "tsm", "0 blocks, this one in 16"),
        (2, (), "tsm", "9 blocks, this one in 16"),  # as in their ResNet-101
        (1, ("TSM.SHIFT_DIV", 0), "tsm", "16 blocks, this one in 0"),
        (1, (), "c2d", "16 blocks, this one in 0"),
    ],
)
def test_shifts_elsewhere_are_said_and_refused_for_a_test(
    every: int,
    overrides: tuple,
    arch: str,
    counts: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    model, path = made(*overrides, arch=arch), saved(published(every=every), tmp_path)
    before = model.head.projection.weight.clone()
    with pytest.raises(ValueError, match=f"not of this model: .* shifts channels in {counts}"):
        load_weights(model, path, complete=True, section="TEST")
    assert torch.equal(model.head.projection.weight, before)
    load_weights(model, path)
    assert f"the file's model shifts channels in {counts}" in report_of(caplog)
    assert "267 tensors loaded" in report_of(caplog)


def test_the_network_without_a_shift_is_complete_without_a_shift(tmp_path: Path):
    path = saved(published(every=0), tmp_path)
    load_weights(made("TSM.SHIFT_DIV", 0), path, complete=True, section="TEST")


def test_strides_elsewhere_are_refused_for_a_test(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model, path = made("RESNET.STRIDE_1X1", True), saved(published(), tmp_path)
    load_weights(model, path)
    assert "RESNET.STRIDE_1X1 True: torchvision's" in report_of(caplog)
    with pytest.raises(ValueError, match=r"not of this model: RESNET\.STRIDE_1X1 True"):
        load_weights(model, path, complete=True, section="TEST")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"layer(\d)\.(\d)\.(conv1\.net|\w)", r"layer\1.\2.net.\3"),  # whole blocks shifted
        (r"layer2\.0\.", "layer2.0.block."),  # with a non-local block behind it
        (r"layer2\.", "layer2.net."),  # pooled before it
    ],
)
def test_networks_with_other_parts_are_refused(old: str, new: str, tmp_path: Path):
    state = {re.sub(old, new, name): value for name, value in published().items()}
    with pytest.raises(
        ValueError, match=r"cannot start this model: it is a TSM with base_model\.l"
    ):
        load_weights(made(), saved(state, tmp_path))


def test_resnet_18_and_other_networks_are_refused(tmp_path: Path):
    basic = {k: v for k, v in published().items() if ".conv3" not in k and ".bn3" not in k}
    with pytest.raises(ValueError, match="18 or 34 layers"):
        load_weights(made(), saved(basic, tmp_path))
    other = {"module.base_model.features.0.0.weight": torch.ones(32, 3, 3, 3)}
    with pytest.raises(ValueError, match=r"none of its tensors \(base_model\.features"):
        load_weights(made(), saved(other, tmp_path))


# Starts.


def test_an_image_model_starts_it_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model, path = made(), tmp_path / "resnet50.pth"
    torch.save(image_model(), path)
    with pytest.raises(ValueError, match=r"no time; set TRAIN\.CHECKPOINT_INFLATE True"):
        load_weights(model, path)
    load_weights(model, path, inflate=True)
    assert "265 tensors loaded, 0 partly, 2 kept" in report_of(caplog)
    assert "repeated along time: 53 convolutions" in report_of(caplog)
    flat = image_model()["layer3.5.conv1.weight"]
    assert torch.equal(model.s4.pathway0_res5.branch2.a.weight[:, :, 0], flat)


def test_its_own_checkpoints_are_those_of_the_2d_network(tmp_path: Path):
    """By their names: what a shift does is in no tensor of them."""
    state = {"model_state": made().state_dict()}
    path = tmp_path / "checkpoint.pyth"
    torch.save(state, path)
    for model in (made(), made("TSM.SHIFT_DIV", 0), made(arch="c2d")):
        load_weights(model, path, complete=True)


SHORT = (
    *("RESNET.SPATIAL_STRIDES", [[1], [2], [2], [2]], "RESNET.SPATIAL_DILATIONS", [[1]] * 4),
    *("RESNET.NUM_BLOCK_TEMP_KERNEL", [[3], [4], [6], [3]], "NONLOCAL.GROUP", [[1]] * 4),
    *("NONLOCAL.LOCATION", [[[]]] * 4),
)


def test_a_published_file_is_tested_as_it_is(train: Callable[..., Path], tmp_path: Path):
    keys = ("MODEL.ARCH", "tsm", *SHORT, "TRAIN.ENABLE", False)
    colours = ("DATA.MEAN", [0.485, 0.456, 0.406], "DATA.STD", [0.229, 0.224, 0.225])
    path = saved(published(8), tmp_path)
    train(tmp_path / "run", *keys, *colours, "TEST.CHECKPOINT_FILE_PATH", path)
    assert "267 tensors loaded, 0 partly, 0 kept" in (tmp_path / "run" / "test.log").read_text()
    assert json.loads((tmp_path / "run" / "test.json").read_text())["top5"] >= 0
