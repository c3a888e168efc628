"""Models of any builder: logits in training, scores in evaluation, and what is added to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from multigrid import GroupedBatchNorm3d
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build_model import build_model, build_on_meta, weight_files
from slowfast_patches.models.layers.dropout import ClipDropout
from slowfast_patches.registry import ModelSpec, register_model
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.models.test_models import THIN


class Net(nn.Module):
    """Convolution, BN and projection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4)
        self.projection = nn.Linear(4, 2)

    def forward(self, pathways: list[torch.Tensor]) -> torch.Tensor:
        return self.projection(self.bn(self.conv(pathways[0])).mean((2, 3, 4)))


@pytest.fixture
def registered(own_folder) -> Callable[..., Recipe]:
    """Return `registered(build, ...)`, which registers a model and returns its recipe."""

    names = (f"mine{number}" for number in itertools.count())

    def register(build: Callable[[Recipe], object], *keys: object, **spec: object) -> Recipe:
        name = next(names)
        register_model(name, ModelSpec(**spec))(build)
        return load_recipe(None, ["MODEL.ARCH", name, "NUM_GPUS", 0, "RNG_SEED", 7, *keys])

    return register


@pytest.mark.parametrize("act", ["softmax", "sigmoid"])
def test_a_model_of_a_user_gives_logits_in_training_and_scores_in_evaluation(registered, act):
    model = build_model(registered(lambda recipe: Net(), "MODEL.HEAD_ACT", act))
    x = [torch.randn(2, 3, 2, 4, 4)]
    model.eval()
    scores = model(list(x))
    logits = Net.forward(model, list(x))
    expected = logits.sigmoid() if act == "sigmoid" else logits.softmax(1)
    torch.testing.assert_close(scores, expected)
    model.train()
    torch.testing.assert_close(model(list(x)), Net.forward(model, list(x)))
    assert model.mask_seed == 7


def test_a_builder_that_returns_something_else_is_named(registered):
    with pytest.raises(
        UserError, match=r"MODEL\.ARCH mine0 must return a torch\.nn\.Module, not a l"
    ):
        build_model(registered(lambda recipe: []))


@pytest.mark.parametrize("grouped", [True, False])
def test_bn_is_grouped_and_the_memory_format_is_that_of_the_recipe(registered, grouped):
    keys = ("MODEL.CHANNELS_LAST", True)
    model = build_model(registered(lambda recipe: Net(), *keys), grouped_bn=grouped)
    assert isinstance(model.bn, GroupedBatchNorm3d) == grouped
    wide = nn.Conv3d(3, 4, 3)
    wide_model = build_model(registered(lambda recipe: nn.Sequential(wide), *keys))
    weight = next(wide_model.parameters())
    assert weight.is_contiguous(memory_format=torch.channels_last_3d)
    plain = build_model(registered(lambda recipe: nn.Sequential(nn.Conv3d(3, 4, 3))))
    assert next(plain.parameters()).is_contiguous()


def test_a_model_without_bn_is_left_as_it_is(registered):
    made = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4))
    model = build_model(registered(lambda recipe: made, has_batchnorm=False), grouped_bn=True)
    assert model is made
    assert type(model[1]) is nn.BatchNorm3d


def test_initial_weights_are_files_that_the_spec_names(registered, tmp_path):
    files = [tmp_path / "a"]
    assert (
        weight_files(registered(lambda recipe: Net(), weight_files=lambda recipe: files)) == files
    )
    assert weight_files(registered(lambda recipe: Net())) is None


def test_dropout_is_drawn_for_each_clip_where_there_is_any():
    def dropouts(rate: float) -> list[nn.Module]:
        keys = [*THIN, "MODEL.ARCH", "c2d", "MODEL.DROPOUT_RATE", rate]
        model = build_on_meta(load_recipe(None, keys))
        assert all(p.is_meta for p in model.parameters())
        return [m for m in model.modules() if isinstance(m, ClipDropout)]

    assert len(dropouts(0.5)) == 1
    assert dropouts(0.0) == []
