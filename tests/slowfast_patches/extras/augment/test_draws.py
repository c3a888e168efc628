"""What is drawn for an augmented clip, by hand: operations, their strength, and rectangles."""

import numpy as np
import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.extras.augment import augmentation
from slowfast_patches.extras.augment.augmentation import (
    OPERATIONS,
    Augmentation,
    apply,
    parse_rand_augment,
)
from slowfast_patches.extras.augment.keys import RULES, AugKeys
from slowfast_patches.registry import TaskSpec, register_task
from slowfast_patches.tasks.task import Task

MEAN = (0.2, 0.4, 0.6)
FILL = (51, 102, 153)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rand", (2, 9.0, 0.0)),
        ("rand-m7-n4-mstd0.5-inc1", (4, 7.0, 0.5)),
        ("rand-mstd1-n10-m2.5", (10, 2.5, 1.0)),
    ],
)
def test_a_text_of_randaugment_by_hand(text, found):
    assert parse_rand_augment(text) == found


def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(2, 20, 20, 3), dtype=np.uint8)


@pytest.fixture
def asked(monkeypatch):
    """`asked(videos, aa_type=...)`: the operations of so many clips, and their levels."""

    def call(videos: int, **keys: object) -> tuple[list[str], np.ndarray]:
        found = list[tuple[str, float]]()

        def note(name, clip, level, fill):
            assert fill == pytest.approx(FILL)
            found.append((name, level))
            return clip

        monkeypatch.setattr(augmentation, "apply", note)
        augment = Augmentation(AugKeys(enable=True, re_prob=0.0, **keys), MEAN, 7)
        for video in range(videos):
            augment(noise(), 0, video)
        names, levels = zip(*found, strict=True)
        return list(names), np.array(levels)

    return call


def test_each_operation_and_both_directions_are_drawn_as_often(asked):
    names, levels = asked(700, aa_type="rand-m9-n2")
    assert len(names) == 1400
    counts = [names.count(name) for name in OPERATIONS]
    assert sum(counts) == 1400
    assert min(counts) > 60
    assert set(np.round(levels, 6)) == {-0.9, 0.9}
    assert (levels > 0).mean() == pytest.approx(0.5, abs=0.05)


def test_a_strength_varies_by_its_standard_deviation_within_its_bounds(asked):
    _, levels = asked(700, aa_type="rand-m5-n1-mstd1")
    strength = np.abs(levels)
    assert (strength.mean(), strength.std()) == pytest.approx((0.5, 0.1), abs=0.015)
    for text, share in (("rand-m10-n1-mstd3", 0.5), ("rand-m0-n1-mstd3", 0.5)):
        _, levels = asked(200, aa_type=text)
        strength = np.abs(levels)
        assert strength.max() <= 1
        bound = 1 if "m10" in text else 0
        assert (strength == bound).mean() == pytest.approx(share, abs=0.12)


def test_operations_follow_each_other(monkeypatch):
    monkeypatch.setattr(augmentation, "apply", lambda name, clip, level, fill: clip // 2)
    keys = AugKeys(enable=True, aa_type="rand-n3", re_prob=0.0)
    clip = np.full((2, 4, 4, 3), 160, np.uint8)
    Augmentation(keys, MEAN, 7)(clip, 0, 0)
    assert (clip == 20).all()


def test_colour_jitter_changes_three_properties_in_any_order_by_as_much_as_is_set(monkeypatch):
    found = []
    monkeypatch.setattr(
        augmentation, "_enhanced", lambda name, clip, by: found.append((name, by)) or clip
    )
    keys = AugKeys(enable=True, aa_type="", color_jitter=0.3, re_prob=0.0)
    augment = Augmentation(keys, MEAN, 7)
    for video in range(300):
        augment(noise(), 0, video)
    orders = {tuple(name for name, _ in found[n : n + 3]) for n in range(0, 900, 3)}
    assert len(orders) == 6
    factors = np.array([by for _, by in found])
    assert 0.7 <= factors.min() < 0.71
    assert 1.29 < factors.max() <= 1.3


# Random erasing.


class Numbers:
    """A random generator that gives parts of ranges."""

    def __init__(self, *parts: float) -> None:
        self.parts = list(parts)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.parts.pop(0)

    def random(self) -> float:
        return self.parts.pop(0)

    def integers(self, bound: int, size: tuple[int, ...], dtype: type) -> np.ndarray:
        assert (bound, dtype) == (256, np.uint8)
        return np.arange(np.prod(size), dtype=dtype).reshape(size)


def erased(clip: np.ndarray, *parts: float, **keys: object) -> tuple[slice, slice]:
    """Erase a rectangle of a black clip, and return its rows and columns."""
    Augmentation(AugKeys(enable=True, **keys), MEAN, 7)._erase(clip, Numbers(*parts))
    rows, columns = np.nonzero(clip[0].any(-1))
    return slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)


@pytest.mark.parametrize(
    ("parts", "count", "rows", "columns"),
    [
        # A third of 60² is 34.6² pixels, which leave room for 25.
        ((1.0, 0.5, 0.4, 1.0), 1, (10, 45), (25, 60)),
        # Half of the third, in each of two: 24.5².
        ((1.0, 0.5, 0.0, 0.0), 2, (0, 24), (0, 24)),
        # Sides of 1 : 0.3: 34.6 / √0.3 is more than 60, so the height is 60.
        ((1.0, 1.0, 0.7, 0.0), 1, (0, 60), (0, 19)),
        ((0.0, 0.5, 1.0, 0.5), 1, (52, 60), (26, 34)),  # 2 %: 8.5²
    ],
)
def test_a_rectangle_by_hand(parts, count, rows, columns):
    clip = np.zeros((2, 60, 60, 3), np.uint8)
    found = erased(clip, *parts, re_count=count, re_mode="const")
    assert found == (slice(*rows), slice(*columns))
    inside = clip[:, found[0], found[1]]
    assert (inside == FILL).all()


def test_noise_is_the_same_in_all_frames():
    clip = np.zeros((2, 60, 60, 3), np.uint8)
    rows, columns = erased(clip, 0.0, 0.5, 0.5, 0.5, re_mode="pixel")
    assert (clip[0] == clip[1]).all()
    assert len(np.unique(clip[0, rows, columns])) > 150


def test_a_rectangle_of_a_tiny_clip_has_a_pixel():
    clip = np.zeros((1, 2, 2, 3), np.uint8)
    erased(clip, 0.0, 0.5, 0.0, 0.0, re_mode="const")
    assert (clip[0, 0, 0] == FILL).all()
    assert clip[0, 1].max() == clip[0, 0, 1].max() == 0


@pytest.mark.parametrize(("probability", "count"), [(0.0, 0), (0.3, 1), (1.0, 1)])
def test_as_many_clips_have_rectangles_as_are_asked(monkeypatch, probability, count):
    calls = []
    keys = AugKeys(enable=True, aa_type="", color_jitter=0.0, re_prob=probability, re_count=3)
    augment = Augmentation(keys, MEAN, 7)
    monkeypatch.setattr(augment, "_erase", lambda clip, rng: calls.append(1))
    for video in range(400):
        augment(noise()[:, :2, :2], 0, video)
    assert len(calls) / 3 / 400 == pytest.approx(probability, abs=0.07)
    assert bool(calls) is bool(count)


# Operations.


@pytest.mark.parametrize("level", [-0.5, 0.5])
def test_sharpness_by_hand(level):
    """A pixel of 130 on black. Smoothed, it has 5 / 13 of it, and its neighbours 1 / 13."""
    clip = np.zeros((1, 5, 5, 3), np.uint8)
    clip[0, 2, 2] = 130
    found = apply("sharpness", clip, level, FILL)[0, :, :, 0].astype(int)
    factor = 1 + 0.9 * level
    middle = factor * 130 + (1 - factor) * 50
    assert found[2, 2] == pytest.approx(min(middle, 255), abs=1)
    assert found[1, 1] == pytest.approx(max(0, (1 - factor) * 10), abs=1)
    assert found[0, 0] == 0


def test_contrast_is_around_the_mean_luminance():
    """Halves of pure red and blue of 200 have the mean luminance 41.3."""
    clip = np.zeros((1, 1, 2, 3), np.uint8)
    clip[0, 0, 0, 0] = clip[0, 0, 1, 2] = 200
    mean = 200 * (0.299 + 0.114) / 2
    found = apply("contrast", clip, -0.5, FILL)
    expected = mean + 0.55 * (200 - mean), mean - 0.55 * mean
    assert found[0, 0, 0].tolist() == [round(expected[0]), round(expected[1]), round(expected[1])]


def test_channels_are_stretched_by_themselves():
    clip = np.zeros((1, 1, 2, 3), np.uint8)
    clip[0, 0] = [[10, 100, 7], [20, 150, 7]]
    found = apply("autocontrast", clip, 0.0, FILL)
    assert found[0, 0].tolist() == [[0, 0, 7], [255, 255, 7]]


def test_a_rotation_goes_clockwise_about_the_centre():
    """By 30° at most: a pixel ten to the right goes to 8.66 right and 5 below."""
    clip = np.zeros((1, 21, 21, 3), np.uint8)
    clip[0, 9:12, 19:] = 255
    for level, row in ((1.0, 15), (-1.0, 5)):
        found = apply("rotate", clip, level, (0, 0, 0))[0, :, :, 0]
        assert found[row, 18] > 100
        assert found[20 - row, 18] == 0


# Keys.


@pytest.mark.parametrize(
    ("keys", "broken"),
    [
        ({}, []),
        ({"AUG.AA_TYPE": ""}, []),
        ({"AUG.AA_TYPE": "", "AUG.COLOR_JITTER": 0.0}, []),
        ({"AUG.AA_TYPE": "", "AUG.RE_PROB": 0.0}, []),
        ({"AUG.AA_TYPE": "", "AUG.COLOR_JITTER": 0.0, "AUG.RE_PROB": 0.0}, [0]),
        (
            {
                "AUG.ENABLE": False,
                "AUG.AA_TYPE": "",
                "AUG.COLOR_JITTER": 0.0,
                "AUG.RE_PROB": 0.0,
            },
            [],
        ),
    ],
)
def test_the_rules_that_a_recipe_breaks(keys, broken):
    recipe = load_recipe(None, ["AUG.ENABLE", True]).replaced(keys)
    assert [number for number, rule in enumerate(RULES) if rule.is_broken(recipe)] == broken


def test_targets_of_parts_of_clips_break_a_rule(own_folder):
    register_task("parts", TaskSpec("parts", scores_clips=False))(Task)
    recipe = load_recipe(None, ["AUG.ENABLE", True, "DATA.TASK", "parts"])
    assert [bool(rule.is_broken(recipe)) for rule in RULES] == [False, True]
    assert not any(rule.is_broken(recipe.replaced({"AUG.ENABLE": False})) for rule in RULES)
