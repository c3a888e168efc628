"""Render a small data set in the format of AVA: videos with boxes and action labels.

Two or three textured objects are side by side on a textured background. Each object rotates, grows
or shrinks, and some objects also swing sideways or up and down. The box of an object therefore has
one or two labels. The objects in a video move independently, and a single frame does not reveal the
labels.

    train.csv, val.csv                   a line "path 0" per video, such as train/train0000.mp4 0
    ava_train_v2.2.csv, ava_val_v2.2.csv lines of video, second, box, label and object index
    ava_action_list.pbtxt                names of the labels

The videos have 10 frames per second. AVA's first key frame, at second 902, is frame 20.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.datasets.preparing.clip_file import write_clip
from slowfast_patches.extras.demo.scenes import (
    GROUND,
    TURN,
    UNITS,
    Clip,
    Image,
    draw_sprite,
    paint,
    radius_at,
    texture,
)
from slowfast_patches.extras.demo.spec import SPLITS, DemoSpec
from slowfast_patches.extras.demo.synthetic import (
    ENCODER,
    claim,
    make_videos,
)
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import write_text

ACTIONS = ("clockwise", "counterclockwise", "grow", "shrink", "sideways", "up and down")
"""Names of the labels. An object has exactly one of the first four, and at most one of the last
two."""

_FIRST_SECOND = 900
"""AVA's timestamp of the first frame of a video."""
_FIRST_KEY_FRAME = 902
"""AVA's timestamp of the first key frame of a video."""
_FPS = 10
_RADII = (9.0, 18.0)
"""Smallest and largest radius of an object, in 1/80 of the short side of the frame."""
_ZOOM = (0.03, 0.06)
"""Range of the speed at which objects grow or shrink, in size cycles per frame."""
_SWING = (5.0, 8.0)
"""Range of the amplitude of a swing, in 1/80 of the short side of the frame."""
_PERIOD = (8.0, 12.0)
"""Range of the period of a swing, in frames."""


class _Actor(NamedTuple):
    """Moving object with its labels."""

    sprite: Image
    """Picture of the object, (S, S, 4)."""
    states: NDArray[np.float64]
    """X and y in pixels, angle in radians, and size phase from 0 (smallest) to 1 (largest) at each
    frame, (T, 4)."""
    labels: tuple[int, ...]
    """Label ids, which count from 1."""


def make_ava_form(output: Path, spec: DemoSpec, workers: int) -> int:
    """Render the videos of a data set that are missing in `output`, and write the lists.

    There is no test split. The test uses all key frames of the validation split.

    Args:
        output: Folder of the data set.
        spec: Number and size of the videos.
        workers: Number of processes that render videos.

    Returns:
        The number of videos that were rendered.

    Raises:
        ValueError: The videos are too short to contain a key frame. Also for the reasons given in
            `make_demo_data`.
        OSError: Writing to `output` fails.
    """
    if not _seconds(spec):
        raise UserError(
            f"--frames is {spec.frames}, but must be at least {3 * _FPS} for a key frame"
        )
    claim(output, spec, form="ava")
    wanted = [(split, index) for split in SPLITS[:2] for index in range(getattr(spec, split))]
    missing = [job for job in wanted if not (output / _path(*job)).exists()]
    make_videos(partial(_make_video, output, spec), missing, workers)
    for split in SPLITS[:2]:
        of_split = [job for job in wanted if job[0] == split]
        rows = (row for job in of_split for row in _annotations(spec, job))
        write_text(output / f"ava_{split}_v2.2.csv", "".join(rows))
        write_text(output / f"{split}.csv", "".join(f"{_path(*job)} 0\n" for job in of_split))
    items = (f'item {{\n  name: "{name}"\n  id: {n}\n}}\n' for n, name in enumerate(ACTIONS, 1))
    write_text(output / "ava_action_list.pbtxt", "".join(items))
    return len(missing)


def _path(split: str, index: int) -> str:
    return f"{split}/{split}{index:04d}.mp4"


def _seconds(spec: DemoSpec) -> range:
    """Return the AVA timestamps of the key frames, which exclude the last second of the video."""
    return range(_FIRST_KEY_FRAME, _FIRST_SECOND + spec.frames // _FPS)


def _make_video(output: Path, spec: DemoSpec, job: tuple[str, int]) -> None:
    ground, actors = _draw(spec, job)
    clip: Clip = np.empty((spec.frames, spec.height, spec.width, 3), np.uint8)
    for frame in range(spec.frames):
        canvas = ground.copy()
        for actor in actors:
            x, y, angle, size = actor.states[frame].tolist()
            paint(canvas, actor.sprite, x, y, angle, size, _RADII)
        clip[frame] = np.rint(canvas * 255.0)
    write_clip(output / _path(*job), clip, _FPS, ENCODER)


def _annotations(spec: DemoSpec, job: tuple[str, int]) -> Iterator[str]:
    """Yield the lines of one video in the csv file of boxes, one for each label of a box."""
    _, actors = _draw(spec, job)
    for second in _seconds(spec):
        for number, actor in enumerate(actors):
            x, y, _, size = actor.states[(second - _FIRST_SECOND) * _FPS].tolist()
            reach = radius_at(size, _RADII, min(spec.width, spec.height))
            corners = np.array([(x - reach, y - reach), (x + reach, y + reach)])
            sides = (corners / (spec.width, spec.height)).clip(0, 1).flatten()
            box = ",".join(f"{side:.3f}" for side in sides)
            for label in actor.labels:
                yield f"{Path(_path(*job)).stem},{second:04d},{box},{label},{number}\n"


def _draw(spec: DemoSpec, job: tuple[str, int]) -> tuple[Image, list[_Actor]]:
    """Return a random background and random objects for a video.

    The result depends only on the seed and on `job`, the split and index of the video.
    """
    rng = np.random.default_rng((spec.seed, SPLITS.index(job[0]), job[1]))
    ground = texture(rng, spec.height, spec.width, *GROUND)
    count = int(rng.integers(2, 4))
    return ground, [_draw_actor(rng, spec, number, count) for number in range(count)]


def _draw_actor(rng: np.random.Generator, spec: DemoSpec, number: int, count: int) -> _Actor:
    """Return a random object.

    Divide the frame into `count` vertical strips, and place the object near the middle of the strip
    with the index `number`.
    """
    label = int(rng.integers(4))
    swing = int(rng.integers(3))
    reach = rng.uniform(*_SWING) * min(spec.width, spec.height) / UNITS
    x, y = rng.uniform(0.4, 0.6, 2).tolist()
    turn = rng.uniform(*TURN) * (1, -1, 0, 0)[label]
    zoom = rng.uniform(*_ZOOM) * (0, 0, 1, -1)[label]
    # An object of constant size must be clearly visible. Growing objects may start at any size.
    size = rng.random() if zoom else rng.uniform(0.2, 0.8)
    sprite = draw_sprite(rng)
    angle = 2 * np.pi * rng.random()
    phase = 2 * np.pi * rng.random()
    frames = np.arange(spec.frames)
    away = reach * np.sin(phase + 2 * np.pi / rng.uniform(*_PERIOD) * frames)
    states = [
        (number + x) / count * spec.width + away * (swing == 1),
        y * spec.height + away * (swing == 2),
        angle + turn * frames,
        (size + zoom * frames) % 1.0,
    ]
    return _Actor(sprite, np.stack(states, 1), (1 + label, *([4 + swing] if swing else [])))
