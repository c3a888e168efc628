"""Functions of the user that change clips: what they get, and what they must return."""

from __future__ import annotations

import numpy as np
import pytest

import slowfast_patches.datasets as public
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.datasets.recipe_sampling import sampling_of
from slowfast_patches.datasets.transforms import Transforms, change, transform_generator

RNG = np.random.default_rng(0)


def clip() -> np.ndarray:
    return np.full((2, 4, 4, 3), 8, np.uint8)


def test_functions_are_applied_in_order_with_one_generator_of_the_clip():
    drawn = []

    def double(clip, rng):
        drawn.append(rng.random())
        return clip * 2

    def less(clip, rng):
        drawn.append(rng.random())
        return clip - 1

    given = clip()
    Transforms([double, less], 5)(given, 3, 7)
    assert (given == 15).all()
    expected = transform_generator(5, 3, 7)
    assert drawn == [expected.random(), expected.random()]


def test_generators_differ_by_seed_epoch_and_video_and_from_that_of_the_clip():
    keys = [(5, 3, 7), (6, 3, 7), (5, 4, 7), (5, 3, 8)]
    numbers = {transform_generator(*key).random() for key in keys}
    assert len(numbers) == 4
    assert np.random.default_rng((5, 3, 7)).random() not in numbers
    assert transform_generator(5, 3, 7).random() in numbers


class Lighter:
    """Module that returns clips of another type."""

    def __call__(self, clip, rng):
        return clip / 255


def smaller(clip, rng):
    return clip[:1]


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (Lighter(), r"'Lighter' must return a clip \(2, 4, 4, 3\) .* an array \(2, 4, 4, 3\) floa"),
        (smaller, r"'smaller' must .* not an array \(1, 4, 4, 3\) uint8"),
        (lambda clip, rng: None, "not a value of type NoneType"),
        (lambda clip, rng: clip.tolist(), "not a value of type list"),
    ],
)
def test_what_is_no_clip_of_the_same_form_is_named(transform, said):
    given = clip()
    with pytest.raises(ValueError, match=said):
        Transforms([transform], 0)(given, 0, 0)
    assert (given == 8).all()


def test_a_changed_clip_is_written_in_place():
    given = clip()
    change(given, lambda clip, rng: clip[:, ::-1] // 2, RNG, "halve")
    assert (given == 4).all()


# What a recipe says about clips.


@pytest.mark.parametrize(
    ("dataset", "value", "segments"),
    [
        ("kinetics", "auto", False),
        ("ssv2", "auto", True),
        ("ssv2", "stride", False),
        ("kinetics", "segments", True),
    ],
)
def test_segments_are_those_of_the_recipe_or_else_of_the_data_set(dataset, value, segments):
    recipe = default_recipe().replaced({"TRAIN.DATASET": dataset, "DATA.CLIP_SAMPLING": value})
    assert sampling_of(recipe, "train").options.segments == segments


def test_public_names_are_imported_when_they_are_used():
    assert {name: getattr(public, name).__name__ for name in public.__all__} == {
        name: name for name in ("LabelledVideo", "VideoClips", "load_with_classes")
    }
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = public.nothing
