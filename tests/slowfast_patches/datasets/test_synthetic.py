"""The demo data: a frame gives nothing away, a clip shows its class, files are made once."""

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from slowfast_patches.datasets.demo.synthetic import (
    CLASSES,
    SPLITS,
    DemoSpec,
    draw_scene,
    make_demo_data,
    render,
    video_path,
)

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


def lone_thing(rates, side=65):
    """One thing in the middle of a flat, still ground, halfway through the size cycle."""
    scene = draw_scene(np.random.default_rng(3), 3, side, side)
    thing = replace(scene.things[0], state=(side // 2, side // 2, 0.7, 0.5))
    ground, shake = np.full_like(scene.ground, 0.25), np.zeros_like(scene.shake)
    return replace(scene, ground=ground, shake=shake, things=(thing,), rates=rates, anchor=0)


def assert_alike(a, b):
    """Equal to the last bit but one: rounding may differ where the arithmetic does."""
    assert np.abs(a.astype(int) - b.astype(int)).max() <= 1


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
    scene = lone_thing((2.0, 2.0, 9.0, 9.0))
    clip = render(replace(scene, shake=np.zeros((40, 2))), name)
    for t in (1, 20, 39):
        assert_alike(clip[t], np.roll(clip[0], step * t, axis))


# The files.


def test_csv_lines_name_files_that_decode_to_the_promised_frames(made):
    assert (made / "classes.txt").read_text().split() == list(CLASSES)
    for split in SPLITS:
        lines = (made / f"{split}.csv").read_text().splitlines()
        assert len(lines) == getattr(SMALL, split)
        for line in lines:
            path, label = line.split(" ")
            assert Path(path).name.startswith(CLASSES[int(label)] + "_")
            assert decode(made / path).shape == (5, 32, 48, 3)
    assert not list(made.rglob("*.tmp"))


@pytest.mark.slow
def test_files_do_not_depend_on_the_number_of_processes(made, tmp_path):
    assert make_demo_data(tmp_path, SMALL, workers=2) == 19
    assert contents(tmp_path) == contents(made)


def test_only_what_is_missing_is_made_again(made, tmp_path):
    before = contents(made)
    lost, kept = made / video_path("val", 5), made / video_path("val", 4)
    stamp = kept.stat().st_mtime_ns
    lost.unlink()
    lost.with_name(lost.name + ".tmp").write_bytes(b"an interrupted write")
    assert make_demo_data(made, SMALL, workers=1) == 1
    assert contents(made) == before
    assert kept.stat().st_mtime_ns == stamp
    assert make_demo_data(made, SMALL) == 0


# What is refused, and the command line.


def test_other_arguments_are_refused_and_nothing_is_touched(made):
    before = contents(made)
    with pytest.raises(
        ValueError, match=r"made with .*'train': 9,.* give these numbers, or another"
    ):
        make_demo_data(made, replace(SMALL, train=10, seed=2))
    assert contents(made) == before


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--train", "2", "--val", "1", "--test", "0"], 0, "3 of 3 videos made"),
        (["--train", "-3"], 2, "train=-3"),
        (["--size", "95", "80"], 2, "width=95"),
        (["--output", "{file}/below"], 2, "file/below"),
    ],
)
def test_the_tool_makes_a_data_set_or_names_the_mistake(
    load_program, tmp_path, capsys, options, status, message
):
    tool = load_program("tools/make_demo_data.py")
    (tmp_path / "file").touch()
    options = [option.format(file=tmp_path / "file") for option in options]
    command = ["--output", str(tmp_path / "data"), "--frames", "3", "--size", "36", "32"]
    assert tool.main([*command, "--workers", "1", *options]) == status
    output = "".join(capsys.readouterr())
    assert message in output
    if status == 0:
        assert decode(tmp_path / "data/train/right_0000.mp4").shape == (3, 32, 36, 3)
