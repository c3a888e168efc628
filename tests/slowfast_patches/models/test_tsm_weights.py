"""Checkpoints of the TSM authors as start weights and as tested models."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

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
    """Provide `published(prefix="", every=2)`: a state dict under the TSM authors' names."""

    def make(prefix: str = "module.", every: int = 1) -> dict[str, Tensor]:
        """Make weights in which every `every`-th block of a stage shifts."""
        state = {}
        for name, value in resnet().items():
            block = re.fullmatch(r"(layer\d\.(\d+)\.conv1)\.weight", name)
            shifts = block is not None and int(block[2]) % every == 0
            if not name.startswith("fc."):
                new = f"{block[1]}.net.weight" if block and shifts else name
                state[f"{prefix}base_model.{new}"] = value
        torch.manual_seed(2)
        state[f"{prefix}new_fc.weight"] = torch.randn(CLASSES, 32 * WIDTH) * 0.1
        state[f"{prefix}new_fc.bias"] = torch.randn(CLASSES)
        return state

    return make


def saved(state: dict[str, Tensor], folder: Path) -> Path:
    """Write a checkpoint as the TSM authors' training does."""
    path = folder / "tsm.pth"
    extra = {"epoch": 50, "arch": "resnet50", "optimizer": {"param_groups": []}, "best_prec1": 70.6}
    torch.save({**extra, "state_dict": state}, path)
    return path


def test_a_published_model_is_taken_whole(published, tmp_path: Path):
    model = made()
    load_weights(model, saved(published(), tmp_path), complete=True)
    state, after = published(prefix=""), model.state_dict()
    for name, theirs in {
        "s4.pathway0_res5.branch2.a": "base_model.layer3.5.conv1.net",
        "s4.pathway0_res5.branch2.b": "base_model.layer3.5.conv2",
    }.items():
        assert torch.equal(after[f"{name}.weight"][:, :, 0], state[f"{theirs}.weight"])
    assert torch.equal(after["head.projection.bias"], state["new_fc.bias"])


@pytest.mark.parametrize(
    ("every", "arch", "counts"),
    [
        (2, "tsm", "in 9 blocks, not in 16 blocks"),  # as in their ResNet-101
        (1, "c2d", "in 16 blocks, not in 0 blocks"),
    ],
)
def test_shifts_elsewhere_are_said_and_refused_for_a_test(
    published, every: int, arch: str, counts: str, report, tmp_path: Path
):
    model, path = made(arch=arch), saved(published(every=every), tmp_path)
    before = model.head.projection.weight.clone()
    with pytest.raises(ValueError, match=f"not from this model: .*{counts}"):
        load_weights(model, path, complete=True)
    assert torch.equal(model.head.projection.weight, before)
    load_weights(model, path)
    assert counts in report()
    assert "267 tensors loaded" in report()
