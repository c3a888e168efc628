"""Make a small data set of rendered videos in the form of AVA, with boxes and actions.

Two or three textured things lie side by side on a textured ground. Each turns, grows or shrinks,
and may also swing sideways or up and down. So a box has one or two labels, and its neighbours have
others. A single frame does not reveal the labels.

    train.csv, val.csv                   "path 0" per line: train/train0000.mp4 0
    ava_train_v2.2.csv, ava_val_v2.2.csv video, second, box, label and number of the thing
    ava_action_list.pbtxt                names of the labels

Videos have 10 frames per second, so AVA's first key frame, at second 902, is their frame 20.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from slowfast_patches.datasets.demo.synthetic import (
    ENCODER,
    GROUND,
    SPLITS,
    TURN,
    UNITS,
    Clip,
    DemoSpec,
    Image,
    claim,
    draw_sprite,
    make_videos,
    paint,
    radius_at,
    texture,
    write_clip,
)
from slowfast_patches.datasets.lists.ava_list import FIRST_SECOND, SECONDS
from slowfast_patches.utils.files import write_text

ACTIONS = ("clockwise", "counterclockwise", "grow", "shrink", "sideways", "up and down")
"""Names of the labels. The first four exclude each other, and so do the last two."""

_FPS = 10
_RADII = (9.0, 18.0)
"""Radii at the ends of the size cycle, in units."""
_ZOOM = (0.03, 0.06)
"""Range of the zoom, in size cycles per frame."""
_SWING = (5.0, 8.0)
"""Range of the amplitude of a swing, in units."""
_PERIOD = (8.0, 12.0)
"""Range of the period of a swing, in frames."""


@dataclass(frozen=True)
class _Actor:
    """Thing that moves, with its labels.

    Attributes:
        sprite: The picture of the thing.
        start: x and y in pixels, angle and place in the size cycle, at frame 0.
        turn: Change of the angle per frame.
        zoom: Change of the place in the size cycle per frame.
        swing: Amplitude of the swing in x and y, in pixels.
        phase: Initial phase of the swing, and its change per frame.
        labels: The labels, from 1.
    """

    sprite: Image
    start: tuple[float, float, float, float]
    turn: float
    zoom: float
    swing: tuple[float, float]
    phase: tuple[float, float]
    labels: tuple[int, ...]

    def at(self, frame: int) -> tuple[float, float, float, float]:
        """Return x, y, angle and place in the size cycle at a frame."""
        x, y, angle, size = self.start
        away = np.sin(self.phase[0] + self.phase[1] * frame)
        place = (x + self.swing[0] * away, y + self.swing[1] * away)
        return (*place, angle + self.turn * frame, (size + self.zoom * frame) % 1.0)


def make_ava_form(output: Path, spec: DemoSpec, workers: int | None = None) -> int:
    """Make the data set in `output` complete according to `spec`.

    There is no test split. The test uses all key frames of the validation split.

    Returns:
        The number of new videos.

    Raises:
        ValueError: The videos are too short for a key frame, or as for `make_demo_data`.
        OSError: `output` cannot be written.
    """
    if not _seconds(spec):
        raise ValueError(f"--frames {spec.frames} has no key frame: give {3 * _FPS} or more")
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
    """Return the key frames: all seconds that are followed by another second of the video."""
    return range(SECONDS[0], FIRST_SECOND + spec.frames // _FPS)


def _make_video(output: Path, spec: DemoSpec, job: tuple[str, int]) -> None:
    ground, actors = _draw(spec, job)
    clip: Clip = np.empty((spec.frames, spec.height, spec.width, 3), np.uint8)
    for frame in range(spec.frames):
        canvas = ground.copy()
        for actor in actors:
            paint(canvas, actor.sprite, *actor.at(frame), _RADII)
        clip[frame] = np.rint(canvas * 255.0)
    write_clip(output / _path(*job), clip, _FPS, ENCODER)


def _annotations(spec: DemoSpec, job: tuple[str, int]) -> Iterator[str]:
    """Yield lines in AVA's format, one per label."""
    _, actors = _draw(spec, job)
    for second in _seconds(spec):
        for number, actor in enumerate(actors):
            x, y, _, size = actor.at((second - FIRST_SECOND) * _FPS)
            reach = radius_at(size, _RADII, min(spec.width, spec.height))
            corners = np.array([(x - reach, y - reach), (x + reach, y + reach)])
            sides = (corners / (spec.width, spec.height)).clip(0, 1).flatten()
            box = ",".join(f"{side:.3f}" for side in sides)
            for label in actor.labels:
                yield f"{Path(_path(*job)).stem},{second:04d},{box},{label},{number}\n"


def _draw(spec: DemoSpec, job: tuple[str, int]) -> tuple[Image, list[_Actor]]:
    """Draw the ground of a video and the things on it."""
    rng = np.random.default_rng((spec.seed, SPLITS.index(job[0]), job[1]))
    ground = texture(rng, spec.height, spec.width, *GROUND)
    count = int(rng.integers(2, 4))
    return ground, [_draw_actor(rng, spec, number, count) for number in range(count)]


def _draw_actor(rng: np.random.Generator, spec: DemoSpec, number: int, count: int) -> _Actor:
    """Draw a thing in the middle of its section of the frame's width."""
    label = int(rng.integers(4))
    swing = int(rng.integers(3))
    reach = rng.uniform(*_SWING) * min(spec.width, spec.height) / UNITS
    x, y = rng.uniform(0.4, 0.6, 2).tolist()
    turn = rng.uniform(*TURN) * (1, -1, 0, 0)[label]
    zoom = rng.uniform(*_ZOOM) * (0, 0, 1, -1)[label]
    # A thing of constant size must be clearly visible. Others may start at any size.
    size = rng.random() if zoom else rng.uniform(0.2, 0.8)
    return _Actor(
        draw_sprite(rng),
        ((number + x) / count * spec.width, y * spec.height, 2 * np.pi * rng.random(), size),
        turn,
        zoom,
        (reach * (swing == 1), reach * (swing == 2)),
        (2 * np.pi * rng.random(), 2 * np.pi / rng.uniform(*_PERIOD)),
        (1 + label, *([4 + swing] if swing else [])),
    )
