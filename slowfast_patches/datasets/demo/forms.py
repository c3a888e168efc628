"""The demo data set as Something-Something and Charades come: JPEG frames with frame lists.

ssv2       a video is an item with the template of its class; lists and json files
charades   two videos of different classes, one after the other, are an item; a label for each frame

The same videos, so that recipes for these data sets run at toy size. A form depends on nothing but
the demo data set it is made from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2

from slowfast_patches.datasets.demo.synthetic import CLASSES, MANIFEST
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.files import open_video

__all__ = ["write_charades_form", "write_ssv2_form"]

_SPLITS = {"train": "train", "val": "validation"}
"""The lists of both forms, and what Something-Something calls them. They test on val."""
_FORM = "demo_form.json"
_QUALITY = 92


class _Cut(NamedTuple):
    label: int
    files: Sequence[str]  # JPEG files of a demo video, relative to the form's folder


def write_ssv2_form(demo: Path, out: Path) -> None:
    """Write the training and validation videos of a demo data set as SSv2's users have theirs:
    train.csv, val.csv, the three json files, and the frames, with 8 classes.

    `out` is whole or not there. Nothing is done if it is there already.

    Raises:
        ValueError: `demo` is no demo data set; `out` is something else, or made from another one.
        UnreadableVideoError: a video of it is damaged.
    """
    _write(demo, out, "ssv2", _fill_ssv2)


def write_charades_form(demo: Path, out: Path) -> None:
    """Write the training and validation videos of a demo data set as Charades' users have theirs:
    train.csv, val.csv, Charades_v1_classes.txt and the frames, with 8 classes.

    The items are as many as the videos, each of which is the first part of one and the second part
    of another; all pairs of classes come up. Otherwise as `write_ssv2_form`.
    """
    _write(demo, out, "charades", _fill_charades)


def _write(demo: Path, out: Path, form: str, fill: Callable[[Path, Path], None]) -> None:
    """Fill a folder beside `out` and rename it."""
    source = _read_json(demo / MANIFEST)
    if source is None:
        raise ValueError(f"{demo} is no demo data set; tools/make_demo_data.py makes one")
    wanted = {"form": form, "version": 1, "demo": source}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        found = _read_json(out / _FORM)
        if found is None:
            raise ValueError(f"{out} holds something else; give another folder")
        if found != wanted:
            raise ValueError(f"{out} was made from another demo data set; delete it")
        return
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        fill(demo, temporary)
        (temporary / _FORM).write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read_json(path: Path) -> object:
    """None where there is no such file, or none of JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _fill_ssv2(demo: Path, out: Path) -> None:
    templates, first = [f"[Something] in the motion '{name}'" for name in CLASSES], 1
    plain = (text.replace("[", "").replace("]", "") for text in templates)
    _write_json(out, "labels", {text: str(number) for number, text in enumerate(plain)})
    for split, called in _SPLITS.items():
        cuts = list(enumerate(_cut(demo, split, out), start=first))
        entries = [{"id": str(n), "template": templates[cut.label]} for n, cut in cuts]
        _write_json(out, called, entries)
        _write_list(out, split, ((str(n), [(f, "") for f in cut.files]) for n, cut in cuts))
        first += len(cuts)


def _fill_charades(demo: Path, out: Path) -> None:
    lines = (f"c{number:03d} {name}\n" for number, name in enumerate(CLASSES))
    (out / "Charades_v1_classes.txt").write_text("".join(lines), encoding="utf-8")
    for split in _SPLITS:
        cuts, items = _cut(demo, split, out), []
        for number, cut in enumerate(cuts):
            parts = (cut, cuts[_partner(cuts, number)])
            frames = [(file, str(part.label)) for part in parts for file in part.files]
            items.append((f"{split}{number:04d}", frames))
        _write_list(out, split, items)


def _partner(cuts: Sequence[_Cut], number: int) -> int:
    """A video of another class. The step to it grows from 1 to 7 and begins again, so that classes,
    which come in turn, meet all others."""
    step = 1 + number // len(CLASSES) % (len(CLASSES) - 1)
    others = ((number + step + more) % len(cuts) for more in range(len(cuts)))
    found = next((n for n in others if cuts[n].label != cuts[number].label), None)
    if found is None:
        raise ValueError("a demo data set of one class has no pairs; make a larger one")
    return found


def _cut(demo: Path, split: str, out: Path) -> list[_Cut]:
    """Write the frames of a split's videos, each to a folder of its own."""
    cuts = []
    for number, video in enumerate(read_csv(demo / f"{split}.csv", num_classes=len(CLASSES))):
        name, files = f"{split}{number:04d}", list[str]()
        (out / "frames" / name).mkdir(parents=True)
        with open_video(video.path) as (container, stream):
            for count, frame in enumerate(container.decode(stream), start=1):
                # FFmpeg's conversion of such small frames does not always give the same bytes.
                image = cv2.cvtColor(frame.to_ndarray(), cv2.COLOR_YUV2BGR_I420)
                files.append(f"frames/{name}/{name}_{count:06d}.jpg")
                quality = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
                if not cv2.imwrite(str(out / files[-1]), image, quality):
                    raise OSError(f"{out / files[-1]} cannot be written")
        cuts.append(_Cut(video.label, files))
    return cuts


def _write_list(
    out: Path, split: str, items: Iterable[tuple[str, Sequence[tuple[str, str]]]]
) -> None:
    """A frame list of some (name, frames), a frame being (path, labels)."""
    lines = (
        f'{name} {number} {count} {file} "{labels}"\n'
        for number, (name, frames) in enumerate(items)
        for count, (file, labels) in enumerate(frames)
    )
    (out / f"{split}.csv").write_text(f"{HEADER}\n{''.join(lines)}", encoding="utf-8")


def _write_json(out: Path, name: str, content: object) -> None:
    path = out / f"something-something-v2-{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
