"""Models of any builder: logits in training, scores in evaluation, and what is added to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from multigrid import GroupedBatchNorm3d
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models import build_model as build_module
from slowfast_patches.models.build_model import (
    build_model,
    build_on_meta,
    build_resnet,
    weight_files,
)
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


class Host(nn.Module):
    """Head with the pools of PySlowFast's heads for boxes (of 4 frames) and for clips."""

    def __init__(self, config: object) -> None:
        super().__init__()
        self.head = nn.Module()
        self.head.s0_tpool = nn.AvgPool3d((4, 1, 1), stride=1)
        self.head.pathway0_avgpool = nn.AvgPool3d((4, 2, 2), stride=2)
        self.head.spool = nn.AvgPool3d(2)
        self.head.dropout = nn.Dropout(0.25)
        self.head.projection = nn.Linear(6, 4)
        self.head.act = nn.Sigmoid()


def test_heads_of_the_host_accept_every_shape_and_give_logits_in_training(monkeypatch):
    patched = []
    monkeypatch.setattr(patching, "apply", lambda: patched.append(True))
    from slowfast.models.model_builder import _MODEL_TYPES

    monkeypatch.setitem(_MODEL_TYPES, "c2d", Host)
    keys = ["MODEL.ARCH", "c2d", "MODEL.DROPOUT_RATE", 0.25, "RNG_SEED", 7]
    head = build_resnet(load_recipe(None, [*keys, "MODEL.HEAD_ACT", "sigmoid"])).train().head
    assert patched == [True]  # before slowfast.models is imported
    x = torch.randn(2, 6, 3, 5, 6)
    torch.testing.assert_close(head.s0_tpool(x), x.mean(2, keepdim=True))
    torch.testing.assert_close(head.pathway0_avgpool(x), x.mean((2, 3, 4), keepdim=True))
    assert type(head.spool) is nn.AvgPool3d
    assert (head.dropout.p, head.dropout.seed, head.dropout.features) == (0.25, 7, 6)
    assert torch.equal(head.act(x), x)
    head.eval()
    assert torch.equal(head.act(x), x.sigmoid())
    windows = nn.AvgPool3d((4, 2, 2), stride=2)(x.repeat(1, 1, 2, 1, 1))
    assert torch.equal(head.pathway0_avgpool(x.repeat(1, 1, 2, 1, 1)), windows)


def test_softmax_and_dropout_of_the_host_stay_unless_the_recipe_says_otherwise(monkeypatch):
    patching.apply()
    from slowfast.models.model_builder import _MODEL_TYPES

    monkeypatch.setitem(_MODEL_TYPES, "c2d", Host)
    keys = ["MODEL.ARCH", "c2d", "MODEL.HEAD_ACT", "softmax", "MODEL.DROPOUT_RATE", 0.0]
    head = build_resnet(load_recipe(None, keys)).head
    assert (type(head.dropout), type(head.act)) == (nn.Dropout, nn.Sigmoid)


def test_a_model_is_checked_for_cuda_graphs(registered, monkeypatch):
    checked = []
    monkeypatch.setattr(build_module, "check_cuda_graphs", checked.append)
    model = build_model(registered(lambda recipe: Net()))
    assert checked == [model]


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


def test_on_the_meta_device_nothing_is_drawn_and_other_functions_are_called(registered):
    seen = []

    def build(recipe: Recipe) -> nn.Module:
        x = torch.ones(2, 3)
        seen.extend([x.normal_(), x.uniform_(0, 1), torch.sum(x, dim=1)])
        assert seen[0] is seen[1] is x
        return Net()

    state = torch.get_rng_state()
    build_on_meta(registered(build))
    assert all(tensor.is_meta for tensor in seen)
    assert seen[2].shape == (2,)
    assert torch.equal(torch.get_rng_state(), state)


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
