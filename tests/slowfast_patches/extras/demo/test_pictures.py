"""Pictures and boxes of the demo data by hand, and arguments that are refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slowfast_patches.extras.demo import ava, scenes, synthetic
from slowfast_patches.extras.demo.ava import make_ava_form
from slowfast_patches.extras.demo.scenes import Scene, Thing, draw_scene, paint, radius_at, render
from slowfast_patches.extras.demo.spec import DemoSpec
from slowfast_patches.extras.demo.synthetic import claim, make_demo_data, make_videos, video_path
from slowfast_patches.utils.errors import RunError, UserError
from slowfast_patches.utils.processes import WorkerCrashed


class Numbers:
    """A random generator that gives these numbers, and the middle of each range."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def integers(self, *_: int, size: int | None = None) -> float:
        return self.numbers.pop(0)

    def random(self) -> float:
        return 0.25

    def uniform(self, low: float, high: float, size: int | None = None):
        middle = (low + high) / 2
        return middle if size is None else np.full(size, middle)


# Specifications.


@pytest.mark.parametrize("sides", [(30, 64), (64, 30), (65, 64), (64, 65)])
def test_a_frame_that_cannot_be_encoded_is_refused(sides):
    with pytest.raises(UserError, match=rf"frame size is {sides[0]} × {sides[1]}, but both must"):
        DemoSpec(width=sides[0], height=sides[1])
    assert DemoSpec(width=32, height=32).frames == 40


def test_classes_alternate_and_a_number_counts_the_videos_of_a_class():
    paths = [video_path("val", index) for index in (0, 1, 7, 8, 17)]
    names = ["left_0000", "right_0000", "shrink_0000", "left_0001", "right_0002"]
    assert paths == [f"val/{name}.mp4" for name in names]


def test_a_folder_with_other_lists_or_other_settings_is_refused(tmp_path):
    spec = DemoSpec(1, 1, 1)
    claim(tmp_path / "new", spec)
    assert {path.name for path in (tmp_path / "new").iterdir() if path.is_dir()} == {
        "train",
        "val",
        "test",
    }
    stored = json.loads((tmp_path / "new" / "demo_data.json").read_text())
    assert (stored["train"], stored["version"], stored["frames"]) == (1, 1, 40)
    claim(tmp_path / "new", spec)
    for other in ({"form": "ava"}, {}):
        with pytest.raises(UserError, match="was made with the settings"):
            claim(tmp_path / "new", replace(spec, seed=0 if other else 1), **other)
    (tmp_path / "test.csv").touch()
    with pytest.raises(UserError, match="has csv files that do not belong to demo data"):
        claim(tmp_path, spec)
    assert not (tmp_path / "demo_data.json").exists()


def test_a_video_whose_processes_crash_is_named(monkeypatch):
    asked = []

    def run_each(make, jobs, workers, jobs_per_worker):
        asked.append((workers, jobs_per_worker))
        yield ("val", 3), None
        yield ("val", 4), WorkerCrashed()

    monkeypatch.setattr(synthetic, "run_each", run_each)
    with pytest.raises(RunError, match="two processes crashed while making video 4 of val"):
        make_videos(lambda job: None, [("val", 3), ("val", 4)], 2)
    with pytest.raises(RunError):
        make_videos(lambda job: None, [("val", 3)], 1)
    assert asked == [(2, 4), (0, 4)]


def test_each_split_and_index_has_a_picture_of_its_own(tmp_path, monkeypatch):
    drawn = {}

    def write(path, clip, rate, options):
        drawn[path.name] = (clip, rate)
        path.write_bytes(b"video")

    monkeypatch.setattr(synthetic, "write_clip", write)
    spec = DemoSpec(train=2, val=1, test=1, frames=1, width=32, height=32)
    assert make_demo_data(tmp_path, spec, 1) == 4
    folders = ("train", "val", "test")
    assert sorted(path.name for f in folders for path in (tmp_path / f).iterdir()) == [
        *["left_0000.mp4"] * 3,
        "right_0000.mp4",
    ]
    assert {rate for _, rate in drawn.values()} == {30}
    assert (tmp_path / "train.csv").read_text() == "train/left_0000.mp4 0\ntrain/right_0000.mp4 1\n"
    assert (tmp_path / "val.csv").read_text() == "val/left_0000.mp4 0\n"
    scenes_of = [
        np.random.default_rng((0, split, index)).random() for split in range(3) for index in (0, 1)
    ]
    assert len(set(scenes_of)) == 6


# Pictures.


def test_a_radius_grows_by_equal_ratios():
    """From 2 to 8 units of a side of 160 pixels, 2 pixels each."""
    assert [radius_at(size, (2, 8), 160) for size in (0, 0.5, 1)] == pytest.approx([4, 8, 16])


def test_an_object_covers_its_radius_around_its_place_and_wraps_around():
    """A white square of 12.5 units of a side of 80 pixels at the left edge."""
    sprite = np.ones((scenes.SPRITE, scenes.SPRITE, 4), np.float32)
    sprite[[0, -1]] = sprite[:, [0, -1]] = 0
    canvas = np.zeros((80, 80, 3), np.float32)
    paint(canvas, sprite, 0.0, 40.0, 0.0, 0.5, (12.5, 12.5))
    row, column = canvas[40, :, 0], canvas[:, 0, 0]
    assert np.flatnonzero(row > 0.5).tolist() == [*range(13), *range(68, 80)]
    assert np.flatnonzero(column > 0.5).tolist() == list(range(28, 53))
    assert row[:12].tolist() == [1.0] * 12
    assert canvas[0].max() == 0


@pytest.mark.parametrize(("size", "strength"), [(0.075, 0.5), (0.5, 1.0), (0.925, 0.5), (0.0, 0.0)])
def test_objects_fade_at_both_ends_of_the_cycle_of_sizes(size, strength):
    sprite = np.ones((scenes.SPRITE, scenes.SPRITE, 4), np.float32)
    canvas = np.full((80, 80, 3), 0.5, np.float32)
    paint(canvas, sprite, 40.0, 40.0, 0.3, size, (10, 10))
    assert canvas[40, 40].tolist() == pytest.approx([0.5 + 0.5 * strength] * 3)


def test_an_angle_turns_clockwise():
    """What is right of the centre goes below it by a quarter turn."""
    sprite = np.zeros((scenes.SPRITE, scenes.SPRITE, 4), np.float32)
    sprite[28:36, 48:60] = 1
    canvas = np.zeros((80, 80, 3), np.float32)
    paint(canvas, sprite, 40.0, 40.0, np.pi / 2, 0.5, (20, 20))
    rows, columns = np.nonzero(canvas[..., 0] > 0.5)
    assert (rows.mean(), columns.mean()) == pytest.approx((40 + 20 * 44.5 / 63, 40), abs=1.0)


def test_a_sprite_is_read_between_its_pixels():
    sprite = np.array([[0, 1, 2], [10, 11, 12], [20, 21, 22]], np.float32)[..., None]
    u = np.array([[-1.0, 0.0, 0.5, 0.999999, -9.0]])
    v = np.array([[-1.0, 0.0, -0.5, 0.0, -9.0]])
    assert scenes._sample(sprite, u, v).flatten() == pytest.approx([0, 11, 6.5, 12, 0], abs=0.01)


def test_a_picture_is_shifted_by_parts_of_pixels():
    tile = np.zeros((3, 4, 1), np.float32)
    tile[1, 2] = 8
    assert scenes._shifted(tile, 1, 0)[1, :, 0].tolist() == [0, 0, 0, 8]
    assert scenes._shifted(tile, -0.25, 0)[1, :, 0].tolist() == [0, 2, 6, 0]
    assert scenes._shifted(tile, 0, 1.5)[:, 2, 0].tolist() == [4, 0, 4]


LAST = scenes.SPRITE - 1
Y, X = np.mgrid[0 : LAST + 1, 0 : LAST + 1] * (2 / LAST) - 1
EDGE = 2.5 / scenes.SPRITE


@pytest.mark.parametrize(
    ("numbers", "outline"),
    [
        ((0, 4), np.abs(X) + np.abs(Y)),  # a square on its corner
        ((1,), np.hypot(X, Y / 0.7)),  # an oval whose height is the middle of 0.45 to 0.95
    ],
)
def test_a_shape_is_half_opaque_at_its_outline_which_ends_before_the_border(numbers, outline):
    opacity = scenes._shape(Numbers(*numbers))
    assert opacity.dtype == np.float32
    assert ((opacity > 0.5) == (outline < 1 - 2 * EDGE)).all()
    assert (opacity[outline < 1 - 2 * EDGE - EDGE] == 1).all()
    assert (opacity[outline > 1] == 0).all()
    soft = (opacity > 0) & (opacity < 1)
    assert 0 < soft.mean() < 0.1


def test_a_blob_has_the_same_reach_and_is_not_round():
    """Its radius is 1 + 0.1 Σ cos(kθ + π / 2), relative to its largest."""
    opacity = scenes._shape(Numbers(2))
    radius = np.hypot(X, Y)
    assert (opacity[radius > 1 - 1.5 * EDGE] == 0).all()
    assert 0.85 < radius[opacity > 0.5].max() < 1 - 2 * EDGE
    theta = np.arctan2(Y, X)
    outline = 1 - 0.1 * (np.sin(2 * theta) + np.sin(3 * theta) + np.sin(5 * theta))
    inside = radius < outline / outline.max() * (1 - 2 * EDGE)
    assert ((opacity > 0.5) == inside).all()


def test_a_shake_has_unit_variance_and_is_correlated_in_time():
    offsets = scenes._shake(np.random.default_rng(0), 20_000)
    assert offsets.std(0) == pytest.approx([1, 1], abs=0.03)
    next_ones = (offsets[1:] * offsets[:-1]).mean(0)
    assert next_ones == pytest.approx([0.6, 0.6], abs=0.03)


@pytest.mark.parametrize(("level", "contrast"), [scenes.GROUND, scenes.THING])
def test_a_texture_has_the_asked_brightness_and_contrast_and_matches_at_its_edges(level, contrast):
    made = [scenes.texture(np.random.default_rng(n), 40, 60, level, contrast) for n in range(5)]
    for picture in made:
        assert picture.shape == (40, 60, 3)
        assert picture.dtype == np.float32
        assert picture == pytest.approx(picture.round(4), abs=1e-6)
        assert level[0] - 0.05 < picture.mean() < level[1] + 0.05
        spread = np.sqrt((picture.std((0, 1)) ** 2).sum())
        assert 0.7 * contrast[0] < spread < 1.6 * contrast[1]
        steps = np.abs(np.diff(picture, axis=1)).mean()
        across = np.abs(picture[:, 0] - picture[:, -1]).mean()
        assert across < 3 * steps


def test_a_scene_has_the_asked_ranges_in_units_of_the_short_side():
    drawn = [draw_scene(np.random.default_rng(n), 6, 96, 160) for n in range(12)]
    unit = 96 / 80
    for scene in drawn:
        assert scene.ground.shape == (160, 96, 3)
        assert scene.shake.shape == (6, 2)
        assert 0 <= scene.anchor < 6
        assert 2 <= len(scene.things) <= 3
        across, down, turn, zoom = scene.rates
        assert across == down
        assert scenes.SPEED[0] * unit <= across <= scenes.SPEED[1] * unit
        assert scenes.TURN[0] <= turn <= scenes.TURN[1]
        assert scenes.ZOOM[0] <= zoom <= scenes.ZOOM[1]
        for thing in scene.things:
            x, y, angle, size = thing.state
            assert 0 <= x < 96
            assert 0 <= y < 160
            assert 0 <= angle < 2 * np.pi
            assert 0 <= size < 1
    assert np.std([scene.shake for scene in drawn]) == pytest.approx(0.3 * unit, rel=0.25)
    assert max(thing.state[1] for scene in drawn for thing in scene.things) > 120


@pytest.mark.parametrize(
    ("name", "rates", "place"),
    [
        ("right", (4, 9, 0, 0), (44, 40)),
        ("up", (9, 4, 0, 0), (40, 36)),
        ("grow", (9, 9, 0, 0), (40, 40)),
    ],
)
def test_a_class_changes_one_part_of_the_state_by_its_rate(name, rates, place):
    """An opaque object in the frame after the anchor, and a camera that is 2 pixels off."""
    sprite = np.ones((scenes.SPRITE, scenes.SPRITE, 4), np.float32)
    thing = Thing(sprite, (40.0, 40.0, 0.0, 0.5))
    ground = np.zeros((80, 80, 3), np.float32)
    shake = np.array([[0.0, 0.0], [2.0, 1.0]])
    clip = render(Scene(ground, (thing,), rates, shake, anchor=0), name)
    assert clip.dtype == np.uint8
    assert clip.max() == 255
    rows, columns = np.nonzero(clip[1, ..., 0])
    found = (columns.min() + columns.max()) / 2, (rows.min() + rows.max()) / 2
    assert found == pytest.approx((place[0] + 2, place[1] + 1), abs=0.6)


# The form of AVA's lists.

SPEC = DemoSpec(train=1, val=1, test=0, frames=45, width=80, height=64)


def test_key_frames_exclude_the_last_second():
    assert list(ava._seconds(SPEC)) == [902, 903]
    assert list(ava._seconds(replace(SPEC, frames=30))) == [902]
    assert list(ava._seconds(replace(SPEC, frames=29))) == []


def test_a_line_of_a_box_by_hand(monkeypatch):
    """Radius 9 · √2 units of 0.8 pixels in frame 20; the right side is outside of the frame."""
    states = np.zeros((45, 4))
    states[20] = [75.0, 32.0, 1.0, 0.5]
    states[30] = [40.0, 32.0, 1.0, 0.0]
    actor = ava._Actor(np.zeros((1, 1, 4), np.float32), states, (3, 5))
    monkeypatch.setattr(ava, "_draw", lambda spec, job: (None, [actor]))
    lines = list(ava._annotations(SPEC, ("val", 7)))
    reach = 9 * 2**0.5 * 0.8
    box = f"{(75 - reach) / 80:.3f},{(32 - reach) / 64:.3f},1.000,{(32 + reach) / 64:.3f}"
    assert lines[:2] == [f"val0007,0902,{box},{label},0\n" for label in (3, 5)]
    assert lines[2].startswith("val0007,0903,0.410,0.388,0.590,0.613,3,0")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("label", "swing", "labels", "moves"),
    [
        (0, 0, (1,), (0, 0, 1, 0)),
        (1, 1, (2, 5), (1, 0, -1, 0)),
        (2, 2, (3, 6), (0, 1, 0, 1)),
        (3, 0, (4,), (0, 0, 0, -1)),
    ],
)
def test_labels_say_what_an_object_does(monkeypatch, label, swing, labels, moves):
    """The third of three objects, which is at 5/6 of the width. It swings by 6.5 units."""
    monkeypatch.setattr(ava, "draw_sprite", lambda rng: None)
    actor = ava._draw_actor(Numbers(label, swing), SPEC, 2, 3)
    x, y, angle, size = actor.states.T
    assert actor.labels == labels
    assert actor.states.shape == (45, 4)
    assert x.mean() == pytest.approx(2.5 / 3 * 80, abs=1)
    assert y.mean() == pytest.approx(32, abs=1)
    for axis, values in ((0, x), (1, y)):
        reach = 6.5 * 64 / 80
        assert np.ptp(values) == pytest.approx(2 * reach * moves[axis], abs=0.3)
    middle = (scenes.TURN[0] + scenes.TURN[1]) / 2
    assert np.diff(angle) == pytest.approx(middle * moves[2])
    steps = (np.diff(size) + 0.5) % 1 - 0.5
    assert steps == pytest.approx(0.045 * moves[3])
    assert size[0] == (0.25 if moves[3] else 0.5)
    assert size.min() >= 0
    assert size.max() < 1


def test_the_form_has_boxes_lists_and_labels_and_missing_videos_alone_are_made(
    tmp_path, monkeypatch
):
    asked = []

    def make(function, jobs, workers):
        asked.append((list(jobs), workers))
        for split, index in jobs:
            (tmp_path / ava._path(split, index)).touch()

    monkeypatch.setattr(ava, "make_videos", make)
    spec = replace(SPEC, train=2)
    assert make_ava_form(tmp_path, spec, 3) == 3
    (tmp_path / "train" / "train0001.mp4").unlink()
    assert make_ava_form(tmp_path, spec, 3) == 1
    assert asked == [([("train", 0), ("train", 1), ("val", 0)], 3), ([("train", 1)], 3)]
    assert (tmp_path / "train.csv").read_text() == "train/train0000.mp4 0\ntrain/train0001.mp4 0\n"
    assert (tmp_path / "val.csv").read_text() == "val/val0000.mp4 0\n"
    boxes = (tmp_path / "ava_val_v2.2.csv").read_text().splitlines()
    assert {line.split(",")[0] for line in boxes} == {"val0000"}
    assert {line.split(",")[1] for line in boxes} == {"0902", "0903"}
    names = (tmp_path / "ava_action_list.pbtxt").read_text()
    assert names.startswith('item {\n  name: "clockwise"\n  id: 1\n}\nitem {')
    assert names.count("item {") == 6
    with pytest.raises(UserError, match="--frames is 29, but must be at least 30"):
        make_ava_form(tmp_path / "short", replace(spec, frames=29), 1)


def test_a_frame_has_each_object_at_its_place(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        ava, "write_clip", lambda path, clip, rate, options: written.append((path, clip, rate))
    )
    states = np.tile([20.0, 32.0, 0.0, 0.5], (3, 1))
    states[2, 0] = 60.0
    sprite = np.ones((scenes.SPRITE, scenes.SPRITE, 4), np.float32)
    ground = np.zeros((64, 80, 3), np.float32)
    actors = [ava._Actor(sprite, states, (1,))]
    monkeypatch.setattr(ava, "_draw", lambda spec, job: (ground, actors))
    ava._make_video(tmp_path, replace(SPEC, frames=3), ("val", 7))
    ((path, clip, rate),) = written
    assert (path, rate) == (tmp_path / "val" / "val0007.mp4", 10)
    assert clip.shape == (3, 64, 80, 3)
    assert clip[:, 32, 20, 0].tolist() == [255, 255, 0]
    assert clip[:, 32, 60, 0].tolist() == [0, 0, 255]
    assert ground.max() == 0


def test_the_drawing_of_a_video_follows_from_its_seed_split_and_number():
    first = ava._draw(SPEC, ("val", 0))
    again = ava._draw(SPEC, ("val", 0))
    assert (first[0] == again[0]).all()
    assert all((a.states == b.states).all() for a, b in zip(first[1], again[1], strict=True))
    others = [
        ava._draw(SPEC, ("train", 0)),
        ava._draw(SPEC, ("val", 1)),
        ava._draw(replace(SPEC, seed=1), ("val", 0)),
    ]
    assert all((first[0] != other[0]).any() for other in others)
    assert {len(ava._draw(SPEC, ("val", n))[1]) for n in range(12)} == {2, 3}


def test_paths_name_the_split_and_the_number():
    assert Path(ava._path("train", 12)) == Path("train/train0012.mp4")
