"""Checkpoints of the TSM authors as start weights and as tested models."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches.config import load_recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.weights import load_weights

WIDTH, CLASSES, FRAMES = 8, 4, 8
pytestmark = pytest.mark.slow  # each builds several networks

THIN = (
    *("RESNET.WIDTH_PER_GROUP", WIDTH, "MODEL.NUM_CLASSES", CLASSES, "DATA.NUM_FRAMES", FRAMES),
    *("DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64, "DATA.TRAIN_JITTER_SCALES", [64, 80]),
)


def made(arch: str = "tsm") -> nn.Module:
    torch.manual_seed(1)
    return build_model(load_recipe(None, ["MODEL.ARCH", arch, *THIN]))


@pytest.fixture
def published(resnet: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """Provide `published(classes, every=1)`: a state dict under the TSM authors' names."""

    def make(
        classes: int = CLASSES, *, prefix: str = "module.", every: int = 1
    ) -> dict[str, Tensor]:
        """Make weights in which every `every`-th block of a stage shifts, or none with 0."""
        state = {}
        for name, value in resnet().items():
            block = re.fullmatch(r"(layer\d\.(\d+)\.conv1)\.weight", name)
            shifts = block is not None and every > 0 and int(block[2]) % every == 0
            if not name.startswith("fc."):
                new = f"{block[1]}.net.weight" if block and shifts else name
                state[f"{prefix}base_model.{new}"] = value
        torch.manual_seed(2)
        state[f"{prefix}new_fc.weight"] = torch.randn(classes, 32 * WIDTH) * 0.1
        state[f"{prefix}new_fc.bias"] = torch.randn(classes)
        return state

    return make


def saved(state: dict[str, Tensor], folder: Path) -> Path:
    """Write a checkpoint as the TSM authors' training does."""
    path = folder / "tsm.pth"
    extra = {"epoch": 50, "arch": "resnet50", "optimizer": {"param_groups": []}, "best_prec1": 70.6}
    torch.save({**extra, "state_dict": state}, path)
    return path


# The TSM authors' models.


def shifted(x: Tensor) -> Tensor:
    """Shift the input of a block, (N·T, C, H, W), by a plain loop.

    The first eighth of the channels comes from the next frame, the second from the frame before.
    """
    fold, out = x.shape[1] // 8, x.clone()
    for i in range(len(x)):
        first, last = i % FRAMES == 0, i % FRAMES == FRAMES - 1
        out[i, :fold] = 0 if last else x[i + 1, :fold]
        out[i, fold : 2 * fold] = 0 if first else x[i - 1, fold : 2 * fold]
    return out


def test_a_published_model_scores_here_what_its_2d_network_scores(
    published, image_features, tmp_path: Path
):
    model = made().eval()
    model.head.act = nn.Identity()  # scores, not their softmax
    load_weights(model, saved(published(), tmp_path), complete=True, section="TEST")
    clips = torch.randn(2, FRAMES, 3, 64, 64)
    with torch.no_grad():
        state = published(prefix="")
        plain = {k.removeprefix("base_model.").replace(".net.", "."): v for k, v in state.items()}
        maps = image_features(plain, clips.flatten(0, 1), shifted)
        frames = F.linear(maps.mean((2, 3)), state["new_fc.weight"], state["new_fc.bias"])
        expected = frames.unflatten(0, clips.shape[:2]).mean(1)
        found = model([clips.transpose(1, 2)])
        backwards = model([clips.flip(1).transpose(1, 2)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    # The reversed clip has other scores, so the test depends on the direction of the shift.
    assert (backwards - found).abs().max() > 0.01 * expected.std()


# Models that shift elsewhere or have other parts.


@pytest.mark.parametrize(
    ("every", "arch", "counts"),
    [
        (2, "tsm", "9 blocks: 16 blocks of this model do"),  # as in their ResNet-101
        (1, "c2d", "16 blocks: 0 blocks of this model do"),
    ],
)
def test_shifts_elsewhere_are_said_and_refused_for_a_test(
    published, every: int, arch: str, counts: str, report, tmp_path: Path
):
    model, path = made(arch=arch), saved(published(every=every), tmp_path)
    before = model.head.projection.weight.clone()
    with pytest.raises(ValueError, match=f"not from this model: .* shifts channels in {counts}"):
        load_weights(model, path, complete=True, section="TEST")
    assert torch.equal(model.head.projection.weight, before)
    load_weights(model, path)
    assert counts.split(":")[1].strip() in report()
    assert "267 tensors loaded" in report()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"layer2\.0\.", "layer2.0.block."),  # with a non-local block behind it
        (r"layer2\.", "layer2.net."),  # pooled before it
    ],
)
def test_networks_with_other_parts_are_refused(published, old: str, new: str, tmp_path: Path):
    state = {re.sub(old, new, name): value for name, value in published().items()}
    with pytest.raises(ValueError, match=r"the file has a TSM with base_model\.l"):
        load_weights(made(), saved(state, tmp_path))
