"""The demo data set as Charades comes: JPEG frames in frame lists, with several labels a video.

Two videos of different classes, one after the other, are an item, and each frame has a label. So
recipes for Charades run at toy size.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2

from slowfast_patches.datasets.demo.synthetic import CLASSES
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.files import open_video

__all__ = ["write_charades_form"]


class _Cut(NamedTuple):
    label: int
    files: Sequence[str]  # JPEG files of a demo video, relative to the form's folder


def write_charades_form(demo: Path, out: Path) -> None:
    """Write the training and validation videos of a demo data set as Charades' users have theirs:
    train.csv, val.csv, Charades_v1_classes.txt and the frames, with 8 classes.

    The items are as many as the videos, each of which is the first part of one and the second part
    of another; all pairs of classes come up. `out` is whole or not there; nothing is done if it is.

    Raises:
        ValueError: `demo` has no lists, or videos of one class alone.
        UnreadableVideoError: a video of it is damaged.
    """
    if out.exists():
        return
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        lines = (f"c{number:03d} {name}\n" for number, name in enumerate(CLASSES))
        (temporary / "Charades_v1_classes.txt").write_text("".join(lines), encoding="utf-8")
        for split in ("train", "val"):
            _write_list(temporary, split, _cut(demo, split, temporary))
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _cut(demo: Path, split: str, out: Path) -> list[_Cut]:
    """Write the frames of a split's videos, each to a folder of its own."""
    cuts = []
    for number, video in enumerate(read_csv(demo / f"{split}.csv", num_classes=len(CLASSES))):
        name = f"{split}{number:04d}"
        files = list[str]()
        (out / "frames" / name).mkdir(parents=True)
        with open_video(video.path) as (container, stream):
            for count, frame in enumerate(container.decode(stream), start=1):
                # FFmpeg's conversion of such small frames does not always give the same bytes.
                image = cv2.cvtColor(frame.to_ndarray(), cv2.COLOR_YUV2BGR_I420)
                files.append(f"frames/{name}/{name}_{count:06d}.jpg")
                if not cv2.imwrite(str(out / files[-1]), image, [cv2.IMWRITE_JPEG_QUALITY, 92]):
                    raise OSError(f"{out / files[-1]} cannot be written")
        cuts.append(_Cut(video.label, files))
    return cuts


def _write_list(out: Path, split: str, cuts: Sequence[_Cut]) -> None:
    """The frame list of a split, whose items are two cuts each."""
    lines = [HEADER]
    for number, cut in enumerate(cuts):
        parts = (cut, cuts[_partner(cuts, number)])
        frames = [(file, part.label) for part in parts for file in part.files]
        for count, (file, label) in enumerate(frames):
            lines.append(f'{split}{number:04d} {number} {count} {file} "{label}"')
    (out / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _partner(cuts: Sequence[_Cut], number: int) -> int:
    """A video of another class. The step to it grows from 1 to 7 and begins again, so that classes,
    which come in turn, meet all others."""
    step = 1 + number // len(CLASSES) % (len(CLASSES) - 1)
    others = ((number + step + more) % len(cuts) for more in range(len(cuts)))
    partner = next((n for n in others if cuts[n].label != cuts[number].label), None)
    if partner is None:
        raise ValueError("a demo data set of one class has no pairs; make a larger one")
    return partner
