"""A small data set of rendered videos in AVA's form: boxes of things, and what each of them does.

Two or three textured things lie side by side on a textured ground. Each turns, grows or shrinks,
and may swing sideways or up and down besides: a box has one or two labels, and those beside it
others. A single frame tells nothing of them.

    train.csv, val.csv                   "path 0" a line: train/train0000.mp4 0
    ava_train_v2.2.csv, ava_val_v2.2.csv video, second, box, label and number of the thing
    ava_action_list.pbtxt                names of the labels

Videos have 10 frames a second, so that AVA's first key frame, at second 902, is their frame 20.
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

__all__ = ["ACTIONS", "make_ava_form"]

ACTIONS = ("clockwise", "counterclockwise", "grow", "shrink", "sideways", "up and down")
"""The first four exclude each other, and so do the last two."""

_FPS = 10
_RADII = (9.0, 18.0)
"""At the ends of the size cycle, in units."""
_ZOOM = (0.03, 0.06)
"""Size cycles a frame."""
_SWING = (5.0, 8.0)
_PERIOD = (8.0, 12.0)
"""Units from the middle, and frames, of a swing."""


@dataclass(frozen=True)
class _Actor:
    """A thing with its labels from 1: where it is at a frame, x and y in pixels, angle and place in
    the size cycle, and how these change a frame; x and y swing by `swing` pixels."""

    sprite: Image
    start: tuple[float, float, float, float]
    turn: float
    zoom: float
    swing: tuple[float, float]
    phase: tuple[float, float]
    labels: tuple[int, ...]

    def at(self, frame: int) -> tuple[float, float, float, float]:
        x, y, angle, size = self.start
        away = np.sin(self.phase[0] + self.phase[1] * frame)
        place = (x + self.swing[0] * away, y + self.swing[1] * away)
        return (*place, angle + self.turn * frame, (size + self.zoom * frame) % 1.0)


def make_ava_form(output: Path, spec: DemoSpec, workers: int | None = None) -> int:
    """Bring the data set in `output` up to what `spec` says, but for a test split: the test is on
    all of the validation's key frames. Returns the number of new videos. Raises as
    `make_demo_data`, and ValueError for videos without a key frame."""
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
    """Key frames: those with a second of the video after them."""
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
    """Lines as AVA's: a label each."""
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
    """The ground of a video and what lies on it."""
    rng = np.random.default_rng((spec.seed, SPLITS.index(job[0]), job[1]))
    ground = texture(rng, spec.height, spec.width, *GROUND)
    count = int(rng.integers(2, 4))
    return ground, [_draw_actor(rng, spec, number, count) for number in range(count)]


def _draw_actor(rng: np.random.Generator, spec: DemoSpec, number: int, count: int) -> _Actor:
    """A thing in the middle of its part of the frame's width."""
    label = int(rng.integers(4))
    swing = int(rng.integers(3))
    reach = rng.uniform(*_SWING) * min(spec.width, spec.height) / UNITS
    x, y = rng.uniform(0.4, 0.6, 2).tolist()
    turn = rng.uniform(*TURN) * (1, -1, 0, 0)[label]
    zoom = rng.uniform(*_ZOOM) * (0, 0, 1, -1)[label]
    # What grows or shrinks begins anywhere; what does not is well visible.
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
