"""PySlowFast's models train at every shape and are unchanged in evaluation."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multigrid import Shape, set_group_size
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe, pyslowfast_config
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.inputs import pack_pathways
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.recipe_schedule import schedule_of

THIN = (
    *("TRAIN.BATCH_SIZE", 2, "DATA.NUM_FRAMES", 8, "DATA.TRAIN_CROP_SIZE", 32, "NUM_GPUS", 0),
    *("DATA.TEST_CROP_SIZE", 32, "DATA.TRAIN_JITTER_SCALES", [32, 40], "MODEL.NUM_CLASSES", 4),
    *("RESNET.WIDTH_PER_GROUP", 8, "MODEL.DROPOUT_RATE", 0.0, "SLOWFAST.ALPHA", 2),
    *("SLOWFAST.BETA_INV", 4, "MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True),
    *("MULTIGRID.BN_BASE_SIZE", 2, "SOLVER.STEPS", [0, 4], "SOLVER.LRS", [1, 0.1]),
    *("SOLVER.LR_POLICY", "steps_with_relative_lrs", "SOLVER.MAX_EPOCH", 6),
)
CROPS = (
    *("DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64),
    *("DATA.TRAIN_JITTER_SCALES", [64, 80]),
)
TWO_PATHWAYS = [[[], []], [[1], []], [[1], [3]], [[], []]]
ONE_PATHWAY = [[[]], [[1, 3]], [[1, 3, 5]], [[]]]
MODELS = {
    "slowfast-nl": ("MODEL.ARCH", "slowfast", "NONLOCAL.LOCATION", TWO_PATHWAYS),
    "slow": ("MODEL.ARCH", "slow"),
    "c2d": ("MODEL.ARCH", "c2d"),
    "i3d-nopool": ("MODEL.ARCH", "i3d_nopool"),
    "i3d-nl": (
        *("MODEL.ARCH", "i3d", "NONLOCAL.LOCATION", ONE_PATHWAY),
        *("NONLOCAL.INSTANTIATION", "dot_product"),
    ),
}


def thin(name: str, *overrides: object) -> Recipe:
    return load_recipe(None, [*THIN, *MODELS[name], *overrides])


def random_inputs(cfg: Recipe, *shape: int) -> list[Tensor]:
    """Return inputs in double precision, where rounding does not tell convolutions apart."""
    clips, frames, crop = shape
    x = torch.randn(clips, 3, frames, crop, crop, dtype=torch.float64)
    return pack_pathways(x, cfg.slowfast.alpha if cfg.model.has_two_pathways else None)


def shaken_host(cfg: Recipe) -> nn.Module:
    """Build the host's model with random scales and shifts, so that no block is the identity."""
    patching.apply()
    from slowfast.models.model_builder import _MODEL_TYPES

    model = _MODEL_TYPES[cfg.model.arch.removesuffix("_nopool")](pyslowfast_config(cfg)).double()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm3d)):
        nn.init.uniform_(norm.weight, 0.5, 1.0)
        nn.init.normal_(norm.bias, 0.0, 0.1)
        norm.momentum = 1.0
    nn.init.normal_(model.head.projection.weight, 0.0, 0.5)
    with torch.no_grad():
        model.train()(random_inputs(cfg, 2, 8, 32))  # sets running statistics that fit
    return model


@pytest.mark.slow("trains whole networks")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_at_the_coarsest_an_odd_and_the_finest_shape_of_its_schedule(name):
    assert_trains(thin(name, *CROPS))


def assert_trains(recipe):
    torch.manual_seed(0)
    model = build_model(recipe, grouped_bn=True).train()
    wanted = ((2, 32), (4, 45), (8, 64))
    shapes = schedule_of(recipe, num_videos=64).shapes
    assert set(wanted) <= {(shape.frames, shape.crop) for shape in shapes}
    set_group_size(model, 2)
    for frames, crop in wanted:
        model.zero_grad()
        inputs = [x.float() for x in random_inputs(recipe, 4, frames, crop)]  # two BN groups
        F.cross_entropy(model(inputs), torch.arange(4)).backward()
        for part, parameter in model.named_parameters():
            assert parameter.grad is not None, part
            assert torch.isfinite(parameter.grad).all(), part
        assert model.head.projection.weight.grad.any()


@pytest.mark.parametrize("name", MODELS)
def test_training_and_evaluation_are_the_hosts_and_larger_crops_slide_the_hosts_window(name):
    assert_same_as_host(thin(name), thin(name))


def assert_same_as_host(recipe, host_recipe):
    torch.manual_seed(0)
    host = shaken_host(host_recipe)
    ours = build_model(recipe, grouped_bn=True).double()
    assert list(ours.state_dict()) == list(host.state_dict())
    ours.load_state_dict(host.state_dict())
    set_group_size(ours, 2)
    for mode, crop in ((False, 32), (False, 64), (True, 32)):
        inputs = random_inputs(recipe, 2, 8, crop)
        with torch.no_grad():
            expected = host.train(mode)(list(inputs))
            found = ours.train(mode)(list(inputs))
        assert expected.std() > 1e-3, "a constant answer would prove nothing"
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("activation", "score"), [("softmax", 0.25), ("sigmoid", 0.5)])
def test_the_heads_activation_makes_scores_in_evaluation_only(activation, score):
    recipe = thin("c2d", "MODEL.HEAD_ACT", activation)
    model = build_model(recipe).double()
    model.head.projection.weight.data.zero_()
    inputs = random_inputs(recipe, 1, 8, 32)
    with torch.no_grad():
        assert model.eval()(list(inputs)).tolist() == [[score] * 4]
        assert model.train()(list(inputs)).tolist() == [[0.0] * 4]


def test_a_shape_with_too_few_frames_for_the_slow_pathway_is_named():
    with pytest.raises(ValueError, match=r"the shape 8×2×64² .* SLOWFAST\.ALPHA"):
        check_shapes(thin("slowfast-nl", "SLOWFAST.ALPHA", 4), [Shape(2, 8, 64), Shape(8, 2, 64)])
