"""Tests of augmented clips: operations by hand, and properties of all random draws."""

import numpy as np
import pytest
import torch

from multigrid import ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.extras.augment.augmentation import (
    OPERATIONS,
    Augmentation,
    apply,
    try_augmentations,
)
from slowfast_patches.extras.augment.keys import AugKeys
from slowfast_patches.registry import AUGMENTATIONS, register_augmentation
from slowfast_patches.utils.errors import UserError

FILL = (110.0, 120.0, 130.0)
MEAN = tuple(value / 255 for value in FILL)


def noise():
    return np.random.default_rng(0).integers(256, size=(2, 20, 20, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "level", "before", "after"),
    [
        ("brightness", -0.5, (0, 100, 200), (0, 55, 110)),
        # Around a mean of 100.
        ("contrast", -0.5, (0, 100, 200), (45, 100, 155)),
        ("autocontrast", 0.3, (50, 75, 150), (0, 64, 255)),
        ("autocontrast", 0.3, (9, 9), (9, 9)),
        # The first value has the rank 0; 1 and 2 of 3 others follow.
        ("equalize", 0.3, (7, 8, 9, 9), (0, 85, 255, 255)),
        ("solarize", 0.5, (0, 127, 128, 255), (0, 127, 127, 0)),
        ("posterize", -1.0, (15, 16, 255), (0, 16, 240)),
    ],
)
def test_values_by_hand(name, level, before, after):
    grey = np.array(before, np.uint8)[None, None, :, None].repeat(3, 3)  # (1, 1, n, 3)
    assert apply(name, grey, level, FILL)[0, 0, :, 0].tolist() == list(after)


def test_colour_goes_towards_grey():
    """A pure red of 200 has the grey value 59.8. A factor of 0.1 keeps a tenth of the colour."""
    red = np.array([200, 0, 0], np.uint8)[None, None, None]
    assert apply("colour", red, -1.0, FILL).ravel().tolist() == [74, 54, 54]


@pytest.mark.parametrize(("name", "axis"), [("translate_x", 2), ("translate_y", 1)])
def test_a_clip_moves_by_nearly_half_and_grey_comes_in(name, axis):
    clip = noise()
    moved = np.swapaxes(apply(name, clip, 1.0, FILL), 1, axis)
    assert (moved[:, 9:] == np.swapaxes(clip, 1, axis)[:, :-9]).all()
    assert (moved[:, :9] == FILL).all()


def test_shears_and_rotations_are_about_the_centre():
    clip = np.zeros((1, 21, 21, 3), np.uint8)
    clip[:, 10, 10], clip[:, 20, 10] = 255, 200
    for name in ("rotate", "shear_x", "shear_y"):
        changed = apply(name, clip, 1.0, (0, 0, 0))
        assert (changed[0, 10, 10] == 255).all()
        if name == "shear_x":  # ten rows below, 0.3 times as many columns aside
            assert changed[0, 20, 13, 0] == 200


@pytest.mark.parametrize("name", OPERATIONS)
def test_frames_that_are_alike_stay_alike_and_nothing_is_changed_by_a_level_of_0(name):
    clip = noise()[:1].repeat(2, 0)
    before = clip.copy()
    for level in (-1.0, 0.4):
        changed = apply(name, clip, level, FILL)
        assert (changed.shape, changed.dtype) == (clip.shape, np.uint8)
        assert (changed[0] == changed[1]).all()
    assert (clip == before).all()
    if name not in ("autocontrast", "equalize"):
        assert (apply(name, clip, 0.0, FILL) == clip).all()


def augmented(clip, epoch=0, video=0, **keys):
    clip = clip.copy()
    Augmentation(AugKeys(enable=True, **keys), MEAN, 7)(clip, epoch, video)
    return clip


def test_a_clip_is_changed_by_its_seed_epoch_and_number_alone():
    clip = noise()
    first = augmented(clip, 3, 5)
    augmented(clip, 1, 1)
    assert (augmented(clip, 3, 5) == first).all()
    others = [augmented(clip, *where) for where in ((3, 6), (4, 5), (5, 3))]
    assert all((other != first).any() for other in others)


def test_boxes_are_erased_of_a_part_of_the_clips():
    """Half of the clips have erased boxes, of 0.02 to 1/3 of the area (0.177 on average)."""
    keys = {"aa_type": "", "color_jitter": 0.0, "re_prob": 0.5, "re_count": 3}
    black = np.zeros((1, 60, 60, 3), np.uint8)
    clips = [augmented(black, video=video, re_mode="const", **keys) for video in range(400)]
    lost = np.array([(clip == FILL).all(-1).mean() for clip in clips])
    parts = lost[lost > 0]
    assert len(parts) == pytest.approx(200, abs=40)
    assert 0.01 / 3 < parts.min() < parts.max() < 0.36
    assert parts.mean() == pytest.approx(0.177, abs=0.03)
    noisy = augmented(black.repeat(2, 0), video=int(lost.argmax()), **keys)
    assert len(np.unique(noisy)) > 100
    assert (noisy[0] == noisy[1]).all()


def test_only_training_clips_are_augmented(tiny_config, tmp_path):
    on = tiny_config(tmp_path, "AUG.ENABLE", True, "AUG.AA_TYPE", "rand-m9-n2")
    for split, request in (("train", ClipRequest(5, 2, Shape(4, 4, 32), 0)), ("val", 1)):
        recipes = (on, tiny_config(tmp_path))
        clip, plain = (ClipDataset.of_recipe(recipe, split)[request]["clip"] for recipe in recipes)
        changed = plain.copy()
        if split == "train":
            Augmentation.of_recipe(on)(changed, 2, 5)
            assert (changed != plain).any()
        assert (clip == changed).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda clip: clip.tolist(), "not a value of type list"),
        (lambda clip: [[1], [1, 2]], "not a value of type list"),
        (torch.from_numpy, "not a value of type Tensor"),
        (lambda clip: None, "not a value of type NoneType"),
        (lambda clip: clip[:1], r"not an array \(1, 8, 8, 3\) uint8"),
        (lambda clip: clip / 255, r"not an array \(2, 8, 8, 3\) float64"),
    ],
)
def test_an_augmentation_that_returns_no_clip_is_named(monkeypatch, change, said):
    augment = Augmentation(AugKeys(enable=True, re_prob=0.0), (0.45,) * 3, 0)
    monkeypatch.setattr(augment, "_custom", [("mine", lambda clip, rng: change(clip))])
    with pytest.raises(UserError, match=f"'mine' must return a clip .2, 8, 8, 3. uint8 .*{said}"):
        augment(np.zeros((2, 8, 8, 3), np.uint8), 0, 0)


@pytest.mark.parametrize("result", [None, np.zeros((4, 8, 8, 3)), np.zeros((3, 8, 8, 3), np.uint8)])
def test_a_registered_augmentation_is_tried_before_the_training(result, monkeypatch):
    monkeypatch.setitem(AUGMENTATIONS.entries, "mine", lambda clip, rng: result)
    with pytest.raises(UserError, match="the augmentation 'mine' must return a clip"):
        try_augmentations(load_recipe(None, ["AUG.CUSTOM", "mine"]), 4, 8)


def test_augmentations_are_applied_in_order_as_often_as_they_are_named(own_folder):
    register_augmentation("dark")(lambda clip, rng: clip // 2)
    register_augmentation("light")(lambda clip, rng: clip + 10)
    off = ("AUG.ENABLE", True, "AUG.AA_TYPE", "", "AUG.COLOR_JITTER", 0, "AUG.RE_PROB", 0)
    clip = np.full((2, 4, 4, 3), 100, np.uint8)
    recipe = load_recipe(None, [*off, "AUG.CUSTOM", "dark, light, dark"])
    Augmentation.of_recipe(recipe)(clip, 0, 0)
    assert (clip == 30).all()
    register_augmentation("half")(lambda clip, rng: clip / 2)
    recipe = load_recipe(None, [*off, "AUG.CUSTOM", "half"])
    with pytest.raises(ValueError, match="'half' must return a clip"):
        Augmentation.of_recipe(recipe)(clip, 0, 0)
