"""Tests of positions that follow the grid, by hand and in models of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multigrid import (
    Patches,
    Shape,
    check_patches,
    convert_positions,
    place_positions,
    set_coverage,
)
from multigrid.positions import check_transformers

# Places on the baseline's grid.


def table_of(base: Patches) -> torch.Tensor:
    """Return a table whose rows are the positions of their patches, (time, height, width)."""
    places = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float32) for n in base))
    return places.view(-1, 3)


def test_a_coarse_patch_keeps_its_place():
    """Patches of half the number lie at the middles of pairs, in time and in space."""
    base = Patches(8, 4, 4)
    placed = place_positions(table_of(base), base, Patches(4, 2, 2)).view(4, 2, 2, 3)
    assert placed[:, 0, 0, 0].tolist() == [0.5, 2.5, 4.5, 6.5]
    assert placed[0, :, 0, 1].tolist() == [0.5, 2.5]
    assert placed[0, 0, :, 2].tolist() == [0.5, 2.5]


def test_patches_beyond_the_middles_of_the_outer_ones_get_their_embeddings():
    """Twice as many patches lie at -0.25, 0.25, 0.75 and 1.25 of the 2 along each axis."""
    base = Patches(2, 2, 2)
    placed = place_positions(table_of(base), base, Patches(4, 4, 4)).view(4, 4, 4, 3)
    expected = [0.0, 0.25, 0.75, 1.0]
    assert placed[:, 0, 0, 0].tolist() == pytest.approx(expected)
    assert placed[0, :, 0, 1].tolist() == pytest.approx(expected)
    assert placed[0, 0, :, 2].tolist() == pytest.approx(expected)


def test_coverage_shrinks_each_clip_about_its_middle():
    """Half of the span of 8 patches is from 2 to 6.

    The middles of its quarters are 2.5 to 5.5 from the edge. The other clip spans all 8.
    """
    base = Patches(8, 2, 2)
    coverage = torch.tensor([[0.5, 1.0], [1.0, 1.0]])
    placed = place_positions(table_of(base), base, Patches(4, 2, 2), coverage)
    times = placed.view(2, 4, 2, 2, 3)[:, :, 0, 0, 0]
    assert times.tolist() == [[2.0, 3.0, 4.0, 5.0], [0.5, 2.5, 4.5, 6.5]]


def test_the_baseline_s_patches_need_no_interpolation_unless_clips_tell_their_coverage():
    base = Patches(4, 2, 2)
    table = table_of(base)
    assert place_positions(table, base, base) is table
    whole, half = place_positions(table, base, base, torch.tensor([[1.0, 1.0], [0.5, 1.0]]))
    assert torch.allclose(whole, table)
    # Half of 4 patches is from 1 to 3. The middles of its quarters are 0.75 to 2.25.
    assert half.view(4, 2, 2, 3)[:, 0, 0, 0].tolist() == [0.75, 1.25, 1.75, 2.25]


# Models.

import transformers  # noqa: E402

FRAMES, CROP = 8, 32
LAYERS = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL = LAYERS | {"intermediate_size": 32}
GRID = {"image_size": CROP, "num_frames": FRAMES}
POOLER = {"crop_size": CROP, "frames_per_clip": FRAMES, "num_pooler_layers": 1, "mlp_ratio": 2.0}
PREDICTOR = {f"pred_{key}": value for key, value in LAYERS.items()}
KINDS = {
    "videomae": ("VideoMAE", SMALL | GRID | {"patch_size": 8, "tubelet_size": 2}),
    "timesformer": ("Timesformer", SMALL | GRID | {"patch_size": 8}),
    "timesformer_joint": (
        "Timesformer",
        SMALL | GRID | {"patch_size": 8, "attention_type": "joint_space_time"},
    ),
    "vivit": ("Vivit", SMALL | GRID | {"tubelet_size": [2, 8, 8]}),
    "vjepa2": ("VJEPA2", LAYERS | POOLER | PREDICTOR | {"patch_size": 8, "tubelet_size": 2}),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, options = KINDS[name]
    config = getattr(transformers, f"{kind}Config")(**options)
    model = getattr(transformers, f"{kind}ForVideoClassification")(config)
    for parameter in model.parameters():  # tables start at 0 in some
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def clips(batch: int = 2, frames: int = FRAMES, crop: int = CROP) -> torch.Tensor:
    return torch.randn(batch, frames, 3, crop, crop, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", KINDS)
def test_a_converted_model_is_the_same_at_the_baselines_shape(name):
    model = build(name)
    before, state = model(clips()).logits, dict(model.state_dict())
    assert convert_positions(model) is model
    assert torch.allclose(model(clips()).logits, before, atol=1e-5)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(after[key].data_ptr() == value.data_ptr() for key, value in state.items())
    build(name).load_state_dict(after)


@pytest.mark.parametrize("name", KINDS)
def test_a_coarse_clip_trains_all_weights_and_its_coverage_moves_the_positions(name):
    model = convert_positions(build(name)).train()
    coarse = clips(2, frames=4, crop=16)
    plain = model(coarse).logits
    plain.sum().backward()
    missing = [
        key for key, p in model.named_parameters() if p.grad is None and "predictor" not in key
    ]
    assert missing == []
    set_coverage(model, torch.tensor([[1.0, 1.0], [0.5, 0.5]]))
    found = model(coarse).logits
    assert torch.allclose(found[0], plain[0], atol=1e-5)
    assert not torch.allclose(found[1], plain[1], atol=1e-3)
    assert torch.equal(model.eval()(coarse).logits, plain), "an evaluation's clips cover 1"


def test_the_predictor_of_v_jepa_2_keeps_the_positions_of_the_patches_that_it_is_given():
    kind, options = KINDS["vjepa2"]
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(transformers.VJEPA2Config(**options)).eval()
    before = model(clips()).predictor_output.last_hidden_state
    after = convert_positions(model)(clips()).predictor_output.last_hidden_state
    assert torch.allclose(after, before, atol=1e-5)


def test_shapes_that_cannot_be_cut_are_refused_with_the_way_out():
    model = build("videomae")
    coarse = [Shape(8, 8, 32), Shape(16, 4, 16)]
    check_patches(model, [Shape(8, 8, 32), Shape(16, 8, 32)])
    with pytest.raises(ValueError, match=r"Call multigrid.convert_positions\(model\)"):
        check_patches(model, coarse)
    check_patches(convert_positions(model), coarse)
    with pytest.raises(ValueError, match=r"32×4×23².*size_divisor=8"):
        check_patches(model, [Shape(8, 8, 32), Shape(32, 4, 23)])


@pytest.mark.parametrize("version", ["5.18.0", "5.18.0rc1", "5.23.1", "6.0"])
def test_versions_of_transformers_that_load_all_weights_are_accepted(version, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    check_transformers()


@pytest.mark.parametrize("version", ["5.17.9", "4.99.0"])
def test_versions_of_transformers_that_lose_weights_are_refused(version, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    for act in (check_transformers, lambda: convert_positions(nn.Linear(1, 1))):
        with pytest.raises(ImportError, match=f"transformers {version} is too old"):
            act()


def test_a_model_without_known_positions_is_refused():
    with pytest.raises(ValueError, match=r"does not support Linear, only VideoMAE, .*FollowsGrid"):
        convert_positions(nn.Linear(1, 1))


def test_patches_that_are_not_square_and_models_for_pre_training_are_refused():
    config = transformers.VivitConfig(image_size=CROP, tubelet_size=[2, 4, 8], **SMALL)
    with pytest.raises(ValueError, match=r"patches of .*2, 4, 8.* must be square"):
        convert_positions(transformers.VivitForVideoClassification(config))
    config = transformers.VideoMAEConfig(image_size=CROP, patch_size=8, **SMALL)
    with pytest.raises(ValueError, match="VideoMAEForPreTraining is for pre-training"):
        convert_positions(transformers.VideoMAEForPreTraining(config))
