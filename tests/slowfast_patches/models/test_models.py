"""PySlowFast's models train at every shape and are unchanged in evaluation."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multigrid import Shape, set_group_size
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe, host_config
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import pack_pathways
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.recipe_schedule import schedule_of

THIN = """
TRAIN: {BATCH_SIZE: 2}
DATA: {NUM_FRAMES: 8, TRAIN_CROP_SIZE: 64, TEST_CROP_SIZE: 64, TRAIN_JITTER_SCALES: [64, 80]}
RESNET: {WIDTH_PER_GROUP: 8}
MODEL: {NUM_CLASSES: 4, DROPOUT_RATE: 0.0}
MULTIGRID: {LONG_CYCLE: True, SHORT_CYCLE: True, BN_BASE_SIZE: 2}
SOLVER: {STEPS: [0, 4], LRS: [1, 0.1], MAX_EPOCH: 6}
NUM_GPUS: 0
"""
ONE = """
MODEL: {ARCH: %s}
"""
TWO = """
MODEL: {ARCH: slowfast}
SLOWFAST: {ALPHA: 2, BETA_INV: 4}
RESNET:
  NUM_BLOCK_TEMP_KERNEL: [[3, 3], [4, 4], [6, 6], [3, 3]]
  SPATIAL_STRIDES: [[1, 1], [2, 2], [2, 2], [2, 2]]
  SPATIAL_DILATIONS: [[1, 1], [1, 1], [1, 1], [1, 1]]
NONLOCAL: {LOCATION: %s, GROUP: [[1, 1], [1, 1], [1, 1], [1, 1]]}
"""
NONLOCAL = """
MODEL: {ARCH: i3d}
NONLOCAL: {LOCATION: [[[]], [[1, 3]], [[1, 3, 5]], [[]]], INSTANTIATION: dot_product}
"""
RECIPES = {
    "slowfast-nl": TWO % "[[[], []], [[1], []], [[1], [3]], [[], []]]",
    "slow": ONE % "slow",
    "c2d": ONE % "c2d",
    "i3d-nopool": ONE % "i3d_nopool",
    "i3d-nl": NONLOCAL,
}
TSM = ONE % "tsm"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes")
    (path / "thin.yaml").write_text(THIN)
    for name, text in (RECIPES | {"tsm": TSM}).items():
        (path / f"{name}.yaml").write_text("_BASE_: thin.yaml\n" + text)
    return path


@pytest.fixture
def recipe(folder: Path, request: pytest.FixtureRequest) -> Recipe:
    return load_recipe(folder / f"{request.param}.yaml")


every_model = pytest.mark.parametrize("recipe", RECIPES, indirect=True)


def random_inputs(cfg: Recipe, clips: int, frames: int, crop: int) -> list[Tensor]:
    alpha = cfg.slowfast.alpha if cfg.model.arch == "slowfast" else None
    return pack_pathways(torch.randn(clips, 3, frames, crop, crop), alpha)


def in_double(inputs: list[Tensor]) -> list[Tensor]:
    """Return inputs in double precision, where rounding does not tell convolutions apart."""
    return [x.double() for x in inputs]


def host_model(cfg: Recipe) -> nn.Module:
    patching.apply()
    from slowfast.models.model_builder import _MODEL_TYPES

    return _MODEL_TYPES[cfg.model.arch.removesuffix("_nopool")](host_config(cfg))


def shake(model: nn.Module, inputs: list[Tensor]) -> None:
    """Randomise scales and shifts so that no block is the identity, and set matching statistics."""
    generator = torch.Generator().manual_seed(1)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm3d)]
    for norm in norms:
        norm.weight.data.uniform_(0.5, 1.0, generator=generator)
        norm.bias.data.normal_(0.0, 0.1, generator=generator)
        norm.momentum = 1.0
    model.head.projection.weight.data.normal_(0.0, 0.5, generator=generator)
    with torch.no_grad():
        model.train()(list(inputs))


# Training.


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*RECIPES, "tsm"], indirect=True)
def test_a_model_trains_at_the_coarsest_an_odd_and_the_finest_shape_of_its_schedule(recipe):
    torch.manual_seed(0)
    model = build_model(recipe, grouped_bn=True).train()
    shapes = schedule_of(recipe, num_videos=64).shapes
    assert {(2, 32), (4, 45), (8, 64)} <= {(shape.frames, shape.crop) for shape in shapes}
    set_group_size(model, 2)
    for frames, crop in ((2, 32), (4, 45), (8, 64)):
        model.zero_grad()
        scores = model(random_inputs(recipe, 4, frames, crop))  # two BN groups
        assert scores.shape == (4, 4)
        loss = F.cross_entropy(scores, torch.arange(4))
        loss.backward()
        assert torch.isfinite(loss)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
        assert float(model.head.projection.weight.grad.abs().sum()) > 0


@every_model
def test_training_and_evaluation_are_the_hosts_and_larger_crops_slide_the_hosts_window(recipe):
    torch.manual_seed(0)
    host = host_model(recipe).double()
    inputs = in_double(random_inputs(recipe, 2, 8, 64))
    shake(host, inputs)
    ours = build_model(recipe, grouped_bn=True).double()
    assert list(ours.state_dict()) == list(host.state_dict())
    ours.load_state_dict(host.state_dict())
    set_group_size(ours, 2)
    for mode, crop in ((False, 64), (False, 96), (True, 64)):
        inputs = in_double(random_inputs(recipe, 2, 8, crop))
        with torch.no_grad():
            expected = host.train(mode)(list(inputs))
            found = ours.train(mode)(list(inputs))
        assert expected.std() > 1e-3, "a constant answer would prove nothing"
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


# Scores.


@pytest.mark.parametrize(("activation", "score"), [("softmax", 0.25), ("sigmoid", 0.5)])
def test_the_heads_activation_makes_scores_in_evaluation_only(folder, activation, score):
    cfg = load_recipe(folder / "c2d.yaml", ["MODEL.HEAD_ACT", activation])
    model = build_model(cfg)
    model.head.projection.weight.data.zero_()
    inputs = random_inputs(cfg, 1, 8, 64)
    with torch.no_grad():
        assert model.eval()(list(inputs)).tolist() == [[score] * 4]
        assert model.train()(list(inputs)).tolist() == [[0.0] * 4]


# Models without memory for weights.


def test_a_shape_with_too_few_frames_for_the_slow_pathway_is_named(folder):
    cfg = load_recipe(folder / "slowfast-nl.yaml", ["SLOWFAST.ALPHA", 4])
    with pytest.raises(ValueError, match=r"ALPHA 4 .* 8×2×64²\. Use an ALPHA of at most 2"):
        check_shapes(cfg, [Shape(2, 8, 64), Shape(8, 2, 64)])
