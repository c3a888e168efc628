"""Public bug reports about files that readers and tools read wrongly, and the right values.

To add a report, add a row: the report, the property of the file, how the file is made, and which
pictures it shows in which order. The pictures show their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from av.stream import Disposition

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from tests.slowfast_patches.datasets.public_reports.boxes import mark_all_as_keys, set_edits
from tests.slowfast_patches.datasets.public_reports.fields import write_fields
from tests.slowfast_patches.datasets.public_reports.numbered import (
    FRAMES,
    SIDE,
    Track,
    copy_as_decoded,
    copy_from,
    cut,
    encode_again,
    noisy,
    numbers,
    overwrite,
    picture,
    put_cover_first,
    write,
    write_jpegs,
    write_palette,
    write_tracks,
    write_without_limit,
    write_wrapped,
)

ALL = tuple(range(FRAMES))
DEFAULT = Disposition.default
COVER = Track(96, Disposition.attached_pic, "mjpeg")
DAMAGED = "cannot be decoded completely: 5 of 40 frames are damaged"


class Report(NamedTuple):
    """A public report, and what is right for its file.

    Attributes:
        where: The project and the number of the report.
        what: The property of the file.
        make: Writes the file into a folder and returns its path.
        shown: Numbers of the pictures, in the order in which they are shown.
        damage: What is said about missing frames.
    """

    where: str
    what: str
    make: Callable[[Path], Path]
    shown: Sequence[int] = ALL
    damage: str = ""


def remuxed(folder: Path, codec: str, container: str) -> Path:
    """Write an AVI file with B-frames, and copy it to another container."""
    source = write(folder / "source.avi", codec, options={"bf": "2"})
    return copy_as_decoded(source, folder / f"copied.{container}")


def hidden_beside(folder: Path) -> Path:
    write_jpegs(folder / "frames", "{:03}.jpg")
    (folder / "frames" / "._000.jpg").write_bytes(b"Mac OS X")
    return folder / "frames"


REPORTS = [
    Report("PyAV 1987, FFMS2 148", "a palette", lambda f: write_palette(f / "a.avi")),
    Report("PyAV 1987", "a palette that changes", lambda f: write_palette(f / "a.avi", 20)),
    Report(
        "PyAV 534, vision PR 1155",
        "MPEG-4 with decoding times",
        lambda f: remuxed(f, "mpeg4", "mp4"),
    ),
    Report(
        "PyAV 534, vision PR 1155",
        "H.264 with decoding times",
        lambda f: remuxed(f, "libx264", "mkv"),
    ),
    Report(
        "mutagen 661, USDX PR 948",
        "stream 0 is cover art",
        lambda f: put_cover_first(write_tracks(f / "a.mp4", Track(SIDE, DEFAULT), COVER)),
    ),
    Report(
        "torchcodec PR 711, decord 232",
        "stream 0 is larger, stream 1 is the default",
        lambda f: write_tracks(f / "a.mp4", Track(96), Track(SIDE, DEFAULT)),
    ),
    Report(
        "torchcodec PR 711, decord 232",
        "stream 0 is a smaller preview",
        lambda f: write_tracks(f / "a.mkv", Track(24), Track(SIDE)),
    ),
    Report(
        "mteb PR 4696, torchcodec 505",
        "the last packets are damaged, MPEG-4 in AVI",
        lambda f: overwrite(write(f / "a.avi", "mpeg4"), slice(-5, None)),
        ALL[:-5],
        DAMAGED,
    ),
    Report(
        "mteb PR 4696, torchcodec 505",
        "the last packets are damaged, H.264",
        lambda f: overwrite(write(f / "a.mp4", options={"bf": "0"}), slice(-5, None)),
        ALL[:-5],
        DAMAGED,
    ),
    Report(
        "mteb PR 4696",
        "packets in the middle are damaged",
        lambda f: overwrite(write(f / "a.avi", "mjpeg", "yuvj420p"), slice(15, 20)),
        ALL[:15] + ALL[20:],
        DAMAGED,
    ),
    Report(
        "pytorch-video-recognition 30, trackers 558",
        "numbers without leading zeros",
        lambda f: write_jpegs(f / "frames", "frame_{}.jpg"),
    ),
    Report(
        "validate 1118",
        "bytes after the end of JPEG files",
        lambda f: write_jpegs(f / "frames", "{:03}.jpg", after=b"\xff\xd8 more"),
    ),
    Report("sd-webui-traintrain 26", "hidden files of macOS", hidden_beside),
]


PICTURES = [picture(number) for number in ALL]
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
PLAIN = {"bf": "0"}
GROUPS = {"x264-params": "keyint=10:scenecut=0:bframes=2"}
BEGINS_LATE = "begins without a key frame, so 5 of 35 frames are missing"
EDITED = tuple(range(10)) + tuple(range(25, 40))


def prepared_and_encoded_again(folder: Path) -> Path:
    source = write(folder / "source.mp4")
    write_prepared(str(source), scan(str(source)), folder / "first.mp4")
    return encode_again(folder / "first.mp4", folder / "again.mp4")


def begun_inside_a_group(folder: Path, suffix: str) -> Path:
    return copy_from(write(folder / "s.mp4", options=GROUPS), folder / f"a{suffix}", 5)


REPORTS += [
    Report(
        "FastFlix 44", "made from a prepared clip, with its comment", prepared_and_encoded_again
    ),
    *(
        Report(
            "mp4v2 128, l-smash 107",
            f"all frames are marked as key frames, {codec}",
            lambda f, codec=codec: mark_all_as_keys(write(f / "a.mp4", codec)),
        )
        for codec in ("mpeg4", "libx264")
    ),
    *(
        Report(
            "FFMS2 PR 315, L-SMASH-Works 111",
            f"a packet is a field, {suffix}",
            lambda f, suffix=suffix: write_fields(f / f"a{suffix}", PICTURES),
        )
        for suffix in (".ts", ".mkv", ".mp4")
    ),
    Report(
        "FFMS2 301, LAVFilters 113",
        "no limit of the reordering, Matroska",
        lambda f: write_without_limit(f / "a.mkv"),
    ),
    Report(
        "FFMS2 301, LAVFilters 113",
        "no limit of the reordering, fragments",
        lambda f: write_without_limit(f / "a.mp4", options=FRAGMENTS),
    ),
    Report(
        "lossless-cut 3057",
        "two edits",
        lambda f: set_edits(write(f / "a.mp4", options=PLAIN), (400, 0), (600, 1000)),
        EDITED,
    ),
    *(
        Report(
            "motion 755, kinesis 441",
            f"begins inside a group of pictures, {suffix}",
            lambda f, suffix=suffix: begun_inside_a_group(f, suffix),
            ALL[10:],
            BEGINS_LATE,
        )
        for suffix in (".mp4", ".mkv", ".ts")
    ),
    Report("mux.js PR 104", "timestamps roll over", lambda f: write_wrapped(f / "a.ts")),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.where}: {report.what}")
def test_what_a_report_was_about_is_read_right(tmp_path, report, monkeypatch):
    """As a whole, each frame alone, after a quick survey as of large files, and prepared."""
    path = str(report.make(tmp_path))
    record = scan(path)
    assert record.damage == report.damage
    assert read(path, ALL[: record.video.frames]) == [*report.shown]
    alone = [read(path, [number])[0] for number in range(0, record.video.frames, 3)]
    assert alone == [*report.shown[::3]]
    monkeypatch.setattr(scanning, "FULLY_DECODED", 0)
    assert scan(path).damage == report.damage
    assert read(path, ALL[: record.video.frames]) == [*report.shown]
    write_prepared(path, record, tmp_path / "prepared.mp4")
    assert read(str(tmp_path / "prepared.mp4"), ALL[: len(report.shown)]) == [*report.shown]


def read(path, indices):
    plan = ClipPlan(np.array(indices), (SIDE, SIDE), (0, 0), SIDE, False)
    return numbers(read_clip(path, scan(path), plan))


SAID = (
    r"is truncated: (\d+ of about \d+|only \d+) frames are there"
    r"|cannot be decoded completely: \d+ of \d+ frames are damaged"
)
CONTAINERS = {
    "avi": "mpeg4",
    "wmv": "wmv2",
    "flv": "flv",
    "mkv": "libx264",
    "webm": "libvpx",
    "ts": "mpeg2video",
    "mpg": "mpeg1video",
    "mp4": "libx264",
    "mov": "mpeg4",
}


@pytest.mark.parametrize(
    ("container", "fill"), [*((each, False) for each in CONTAINERS), ("avi", True), ("mkv", True)]
)
def test_of_a_truncated_file_all_that_is_there_is_used_and_its_share_is_said(
    tmp_path, container, fill
):
    """mteb PR 4696, torchcodec 505: a file that was copied or downloaded in part."""
    path = tmp_path / f"a.{container}"
    options = {"movflags": "faststart"} if container in ("mp4", "mov") else None
    images = [noisy(number) for number in ALL]
    write(path, CONTAINERS[container], images=images, container_options=options)
    assert scan(str(path)).damage == ""
    record = scan(str(cut(path, 0.6, fill)))
    frames = record.video.frames
    assert 0.3 * FRAMES < frames < 0.8 * FRAMES
    assert re.fullmatch(SAID, record.damage)
    assert read(str(path), range(frames - 3)) == [*range(frames - 3)]  # the last may be incomplete
    write_prepared(str(path), record, tmp_path / "prepared.mp4")
    assert scan(str(tmp_path / "prepared.mp4")).video.frames == frames
