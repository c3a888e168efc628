"""The picture of the clips: a row for each shape, the pixels of the data set, the captions."""

import io

import numpy as np
import pytest

from multigrid import (
    ClipRequest,
    Shape,
    Shown,
    SteppedRate,
    Video,
    Window,
    make_schedule,
    stream,
)
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.plan import clips_picture
from slowfast_patches.plan.clips_picture import _draw, clips_figure
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.utils.pictures import new_figure


@pytest.fixture(scope="module")
def recipe(tiny_config, tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("run"), "RNG_SEED", 1)


@pytest.fixture(scope="module")
def schedule(recipe):
    return schedule_of(recipe, 24)


@pytest.fixture(scope="module")
def rows(recipe, schedule):
    panels = clips_figure(recipe, schedule).axes
    return [panels[i : i + 3] for i in range(0, len(panels), 3)]


def check_drawn(axes, item):
    """Check that the frames side by side begin and end with those of the clip."""
    clip = item["clip"][:, :, ::-1] if item["flip"] else item["clip"]
    picture = np.asarray(axes.images[0].get_array())
    frames = np.split(picture, min(4, len(clip)), axis=1)
    np.testing.assert_array_equal([frames[0], frames[-1]], [clip[0], clip[-1]])


def test_each_shape_has_a_row_of_the_first_clips_of_the_training(recipe, schedule, rows):
    train = build_dataset(recipe, "train")
    flips = set()
    for shape, row in zip(schedule.shapes, rows, strict=False):
        title = row[0].get_ylabel()
        assert f"{shape.batch} clips\n{shape.frames} frames\n{shape.crop}² pixels" == title
        for axes, (video, epoch) in zip(row, stream(1, 24, 0, 3), strict=True):
            item = train[ClipRequest(video, epoch, shape, 0)]
            flips.add(item["flip"])
            check_drawn(axes, item)
            assert ("flipped" in axes.get_xlabel()) == item["flip"]
    assert flips == {True, False}


def test_the_last_row_has_the_evaluation_clips(recipe, schedule, rows):
    """Crops have 32 pixels of a short side of 36. Clips have 8 frames with stride 2 at 30 fps."""
    val = build_dataset(recipe, "val")
    assert len(rows) == len(schedule.shapes) + 1
    assert rows[-1][0].get_ylabel() == "evaluation\n8 frames\n32² pixels"
    for axes, number in zip(rows[-1], (0, 4, 7), strict=True):
        check_drawn(axes, val[number])
        assert axes.get_xlabel().endswith("\n0.53 s, 36×36 of 48×40 pixels")


def test_captions_have_all_labels_and_what_is_known_of_the_clip():
    """The first clip is of a video without a frame rate, and the second of a user's data set."""
    figure, [axes] = new_figure(1, 2, 2)
    item = {"flip": True, "clip": np.zeros((1, 8, 8, 3), np.uint8)}
    shown = Shown(9, Window(0, 0, 30.4, 30.4), Video(20, 0.0, 48, 40))
    _draw(axes, item | {"shown": shown}, ["up", "left"])
    assert axes.get_xlabel() == "up, left\n9 frames, 30×30 of 48×40 pixels, flipped"
    assert axes.images[0].get_extent() == [0, 1, 0, 1]
    _draw(axes, item, [r"$\nosuch$"])
    assert axes.get_xlabel() == "$\\nosuch$\nflipped"
    figure.savefig(io.BytesIO())  # A class name is not read as a formula.


def test_frames_of_a_clip_are_drawn_side_by_side_as_the_network_sees_them():
    """Of ten frames of 1 × 2 pixels, the first, fourth, seventh and last, each flipped."""
    _, [axes] = new_figure(1, 2, 2)
    clip = np.arange(20, dtype=np.uint8).reshape(10, 1, 2, 1).repeat(3, axis=3)
    _draw(axes, {"flip": True, "clip": clip}, ["up"])
    picture = np.asarray(axes.images[0].get_array())
    assert picture[0, :, 0].tolist() == [1, 0, 7, 6, 13, 12, 19, 18]
    assert axes.images[0].get_extent() == [0, 4, 0, 1]
    _draw(axes, {"flip": False, "clip": clip[:1]}, ["a" * 40, "b" * 40])
    assert np.asarray(axes.images[1].get_array())[0, :, 0].tolist() == [0, 1]
    first, _, second = axes.get_xlabel().partition("\n")
    assert (first, second) == ("a" * 40 + ",…", "")


class Videos:
    """Data set of grey clips. Video 1 cannot be read."""

    def __init__(self, views: int) -> None:
        self.videos = range(5)
        self.views = views
        self.asked = list[object]()

    def __len__(self) -> int:
        return 5 * self.views

    def __getitem__(self, request: ClipRequest | int) -> dict[str, object]:
        self.asked.append(request)
        video = request // self.views if isinstance(request, int) else request.video
        item = {"clip": np.full((2, 4, 4, 3), video, np.uint8), "flip": False, "label": video}
        return item | {"unread": True} if video == 1 else item


@pytest.mark.parametrize("names", [None, ["zero", "one", "two", "three", "four"]])
def test_rows_have_titles_and_clips_have_their_classes(monkeypatch, names):
    """Of five videos with two views, the evaluation shows the first view of 0, 2 and 4."""
    made = {"train": Videos(1), "val": Videos(2)}
    monkeypatch.setattr(clips_picture, "build_dataset", lambda recipe, split: made[split])
    monkeypatch.setattr(clips_picture, "class_names", lambda recipe: names)
    rate = SteppedRate((1.0,), (0.1,))
    schedule = make_schedule(Shape(4, 8, 16), 5, rate, cycles=None, bn_group_size=None)
    figure = clips_figure(default_recipe().replaced({"RNG_SEED": 3}), schedule)
    assert figure.get_suptitle().startswith("up to 4 frames of each clip")
    assert tuple(figure.get_size_inches()) == pytest.approx((3 * 4.2 + 1, 2 * 1.5))
    titles = [axes.get_ylabel() for axes in figure.axes]
    size = "8 frames\n16² pixels"
    assert titles == [f"4 clips\n{size}", "", "", f"evaluation\n{size}", "", ""]
    assert made["val"].asked == [0, 4, 8]
    first = [ClipRequest(*each, Shape(4, 8, 16), 0) for each in stream(3, 5, 0, 3)]
    assert made["train"].asked == first
    shown = [request.video for request in first] + [0, 2, 4]
    captions = [names[n] if names else f"class {n}" for n in shown]
    captions = [c if n != 1 else "unreadable video" for n, c in zip(shown, captions, strict=True)]
    assert [axes.get_xlabel().strip() for axes in figure.axes] == captions
    assert not any(axes.get_frame_on() or len(axes.get_xticks()) for axes in figure.axes)
