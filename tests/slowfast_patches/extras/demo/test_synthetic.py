"""Tests of the demo data: single frames do not show the class, and files are made once."""

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from slowfast_patches.extras.demo.scenes import CLASSES, draw_scene, render
from slowfast_patches.extras.demo.spec import SPLITS, DemoSpec
from slowfast_patches.extras.demo.synthetic import make_demo_data, video_path
from tests.slowfast_patches.datasets.made_videos import rows

SMALL = DemoSpec(train=9, val=8, test=2, frames=5, width=48, height=32)
OPPOSITES = [("left", "right"), ("up", "down"), ("clockwise", "counterclockwise")]
OPPOSITES += [("grow", "shrink")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    output = tmp_path_factory.mktemp("demo")
    assert make_demo_data(output, SMALL, workers=1) == 19
    return output


def decode(path):
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def contents(folder):
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


# The pictures.


@pytest.mark.parametrize(("name", "opposite"), OPPOSITES)
def test_a_class_played_backwards_is_the_opposite_class(name, opposite):
    scene = draw_scene(np.random.default_rng(0), 12, 48, 40)
    backwards = replace(scene, shake=scene.shake[::-1], anchor=11 - scene.anchor)
    np.testing.assert_array_equal(render(scene, name)[::-1], render(backwards, opposite))


def test_frames_far_from_the_anchor_have_the_same_statistics_in_every_class():
    frames = np.empty((40, len(CLASSES), 32, 48, 3))
    for seed, row in enumerate(frames):
        scene = replace(draw_scene(np.random.default_rng(seed), 1, 48, 32), anchor=-40)
        row[:] = [render(scene, name)[0] for name in CLASSES]
    left_to_right = frames[:, :, :, 24:].mean((2, 3, 4)) - frames[:, :, :, :24].mean((2, 3, 4))
    for statistic in (frames.mean((2, 3, 4)), frames.std((2, 3, 4)), left_to_right):
        # Each class against the mean of all, in the same 40 scenes: no more than chance.
        apart = statistic - statistic.mean(1, keepdims=True)
        standard_error = apart.std(0) / np.sqrt(len(apart))
        assert (np.abs(apart.mean(0)) < 3.5 * standard_error).all()


@pytest.mark.parametrize(("name", "axis", "step"), [("left", 1, -2), ("down", 0, 2)])
def test_translation_shifts_the_picture_and_wraps_around(name, axis, step):
    """One object moves in front of a plain, fixed background.

    Values may differ in the last bit, because the order of operations differs.
    """
    scene = draw_scene(np.random.default_rng(3), 3, 65, 65)
    things = (replace(scene.things[0], state=(32, 32, 0.7, 0.5)),)
    still = {"ground": np.full_like(scene.ground, 0.25), "shake": np.zeros((40, 2)), "anchor": 0}
    scene = replace(scene, things=things, rates=(2.0, 2.0, 9.0, 9.0), **still)
    clip = render(scene, name).astype(int)
    for t in (1, 20, 39):
        assert np.abs(clip[t] - np.roll(clip[0], step * t, axis)).max() <= 1


# The files.


def test_csv_lines_name_files_that_decode_to_the_promised_frames(made):
    assert (made / "classes.txt").read_text().split() == list(CLASSES)
    for split in SPLITS:
        listed = rows(made / f"{split}.csv")
        assert len(listed) == getattr(SMALL, split)
        for path, label in listed:
            assert Path(path).name.startswith(CLASSES[label] + "_")
            assert decode(made / path).shape == (5, 32, 48, 3)


def test_only_what_is_missing_is_made_again(made):
    before = contents(made)
    lost, kept = made / video_path("val", 5), made / video_path("val", 4)
    stamp = kept.stat().st_mtime_ns
    lost.unlink()
    lost.with_name(lost.name + ".tmp").write_bytes(b"an interrupted write")
    assert [make_demo_data(made, SMALL, workers=1) for _ in range(2)] == [1, 0]
    assert contents(made) == before
    assert kept.stat().st_mtime_ns == stamp


def test_other_arguments_are_refused_and_nothing_is_touched(made):
    before = contents(made)
    with pytest.raises(ValueError, match=r"made with .*'train': 9,.* Use the same settings, or"):
        make_demo_data(made, replace(SMALL, train=10, seed=2), workers=1)
    assert contents(made) == before
