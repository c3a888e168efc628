"""Tests of scanned videos: their properties, and the reasons why videos are unreadable."""

import contextlib
import math
import os
import struct
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.bounds import Header
from slowfast_patches.datasets.reading.prepared import TAG
from slowfast_patches.datasets.reading.scan import scan, scan_each
from slowfast_patches.datasets.reading.scanned_video import (
    UPRIGHT,
    WHOLE,
    Kind,
    Orientation,
    Part,
)
from slowfast_patches.datasets.reading.survey import Stamp
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError, open_video
from slowfast_patches.utils.processes import WorkerCrashed
from tests.slowfast_patches.datasets.made_videos import grey, write_jpeg, write_video

# Made files.


def test_without_timestamps_frames_are_counted(tmp_path):
    """A raw H.264 stream stores the display order of frames, but no timestamps."""
    record = scan(str(write_video(tmp_path / "bare.h264", grey(24))))
    assert record.video.frames == 24
    assert record.keys.tolist() == [0]
    assert record.timestamps is None


def test_a_video_of_one_frame_is_named(tmp_path):
    one = write_video(tmp_path / "one.mp4", grey(1))
    assert scan(str(one)).damage == "has only one frame, so all frames of a clip are the same"


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("b.mp4", {"options": {"bf": "3"}}),
        ("ascending.mp4", {"options": {"bf": "0"}}),
        ("fragmented.mp4", {"container_options": {"movflags": "frag_keyframe+empty_moov"}}),
        ("mpeg4.mp4", {"codec": "mpeg4", "options": {"bf": "2"}}),
        ("mpeg2.mov", {"codec": "mpeg2video", "options": {"bf": "2"}}),
        ("animation.mov", {"codec": "qtrle", "pixels": "rgb24"}),
        ("hevc.mp4", {"codec": "libx265", "options": {"x265-params": "log-level=none"}}),
        ("slow.mp4", {"stamps": [number**2 for number in range(24)]}),
    ],
)
def test_an_mp4_file_is_scanned_without_probing_as_with_it(tmp_path, monkeypatch, name, made):
    path = str(write_video(tmp_path / name, grey(24), **made))
    for decoded in (0, scanning.FULLY_DECODED):
        monkeypatch.setattr(scanning, "FULLY_DECODED", decoded)
        quick = scan(path)
        with monkeypatch.context() as patch:
            patch.setattr(scanning, "check_header", lambda path: Header())
            probed = scan(path)
        assert quick.packed() == probed.packed()
        assert (quick.damage, quick.timing) == (probed.damage, probed.timing)


def test_most_mp4_files_are_opened_once_and_never_probed(tmp_path, monkeypatch):
    path = str(write_video(tmp_path / "a.mp4", grey(24), options={"bf": "3"}))
    opened = []

    def counted(*args, **options):
        opened.append(options)
        return open_video(*args, **options)

    monkeypatch.setattr(scanning, "open_video", counted)
    scan(path)
    assert opened == [{"probes": False}]


# Which surveys are trusted.


def stream_of(**parts: object) -> SimpleNamespace:
    known = {"average_rate": Fraction(25), "guessed_rate": None, "time_base": Fraction(1, 25)}
    known |= {"frames": 0, "width": 64, "height": 48}
    codec = SimpleNamespace(name=parts.pop("codec", "h264"))
    return SimpleNamespace(codec_context=codec, **known | parts)


def file_of(
    duration: float = 0, *, reorders: bool = False, is_probed: bool = True, **parts: object
):
    container = SimpleNamespace(
        duration=round(duration * 1_000_000) or None,
        format=SimpleNamespace(name=parts.pop("format", "matroska,webm")),
    )
    how = {"reorders": reorders, "is_probed": is_probed, "path": "a.mkv"}
    return SimpleNamespace(container=container, stream=stream_of(**parts), **how)


@pytest.mark.parametrize(
    ("file", "is_small"),
    [
        (file_of(frames=100, width=128, height=64), False),  # 819,200 pixels
        (file_of(frames=61, width=128, height=64), True),
        (file_of(frames=62, width=128, height=64), False),
        (file_of(frames=61, width=64, height=128), True),
        # The number of frames is unknown: 2 s at 25 or 30 frames per second.
        (file_of(2.4, width=128, height=64), True),
        (file_of(2.4, width=128, height=64, average_rate=Fraction(30)), False),
        (file_of(frames=0, width=128, height=64), False),  # nothing is known
        (file_of(2.4, average_rate=None), False),
        (file_of(9, frames=61, width=128, height=64), True),
    ],
)
def test_a_video_is_small_if_all_its_pixels_are_few(monkeypatch, file, is_small):
    """61 frames of 128 × 64 have 499,712 pixels, and 62 frames have 507,904."""
    monkeypatch.setattr(scanning, "FULLY_DECODED", 61 * 128 * 64)
    assert scanning._is_small(file) == is_small


def stamps(*times: int | None) -> list[Stamp]:
    return [Stamp(time, True) for time in times]


@pytest.mark.parametrize(
    ("times", "file", "in_order"),
    [
        ((0, 2, 1, 3), file_of(reorders=True), True),
        ((0, 2, 1, 3), file_of(codec="mpeg4", reorders=True), False),
        ((0, 2, 1, 3), file_of(codec="mpeg4"), True),
        ((0, 1, 2, 3), file_of(), True),
        ((0, 1, 2, 3), file_of(reorders=True), False),
        ((0, 1, 2, 3), file_of(is_probed=False), True),
        ((0, 1, 1, 3), file_of(), False),
        ((0, 2, 1, 2), file_of(), False),
        ((0, None, 2, 3), file_of(), False),
        ((None, 0, 2, 1), file_of(), False),
    ],
)
def test_ascending_timestamps_of_a_codec_that_reorders_are_not_those_of_frames(
    times, file, in_order
):
    assert scanning._are_in_order(SimpleNamespace(packets=stamps(*times)), file) == in_order


@pytest.mark.parametrize("reorders", [True, False])
def test_whether_a_codec_reorders_is_probed_if_it_is_in_doubt(monkeypatch, reorders):
    asked = []

    @contextlib.contextmanager
    def probed(path):
        asked.append(path)
        yield SimpleNamespace(reorders=reorders)

    monkeypatch.setattr(scanning, "open_video", probed)
    found = SimpleNamespace(packets=stamps(0, 1, 2))
    in_order = scanning._are_in_order(found, file_of(reorders=True, is_probed=False))
    assert in_order is (not reorders)
    assert asked == ["a.mkv"]


@pytest.mark.parametrize(
    ("is_full", "packets", "frames", "failed", "in_step"),
    [
        (False, (0, 1, 2), (), 0, True),
        (True, (0, 1, 2), (0, 1, 2), 0, True),
        (True, (0, 1, 2), (0, 2), 1, True),
        (True, (0, 1, 2), (0, 2), 0, False),
        (True, (0, 1, 2), (0,), 1, False),
        (True, (0, 1, 2), (0, 1, 5), 0, False),
        (True, (0, 1), (0, 1, 1), 0, True),
    ],
)
def test_packets_are_in_step_with_frames_unless_more_are_lost_than_failed(
    is_full, packets, frames, failed, in_step
):
    found = SimpleNamespace(
        is_full=is_full, packets=stamps(*packets), frames=stamps(*frames), failed=failed
    )
    assert scanning._is_in_step(found) == in_step


def test_the_rate_is_the_average_or_else_the_guess_or_else_none():
    two = np.array([0, 1], np.int64)
    assert scanning._timing(file_of(average_rate=Fraction(25)), two).fps == 25
    guessed = file_of(average_rate=None, guessed_rate=Fraction(15), time_base=Fraction(1, 15))
    assert scanning._timing(guessed, two).fps == 15
    nothing = file_of(average_rate=None, guessed_rate=None, time_base=None)
    for times in (None, two):
        with pytest.raises(UnreadableVideoError, match="no frame rate"):
            scanning._timing(nothing, times)
    jump = np.array([0, 1, 2, 9000, 9001], np.int64)
    assert scanning._timing(file_of(format="mpegts"), jump).fps == 25  # two joined files
    assert scanning._timing(file_of(format="matroska,webm"), jump).fps < 1


MATRIX = {0: (1, 0, 0, 1), 1: (0, -1, 1, 0), 2: (-1, 0, 0, -1), 3: (0, 1, -1, 0)}
"""The (a, b, c, d) of each number of quarter turns counterclockwise. They move (x, y) to (ax + cy,
bx + dy), where y points down."""


@pytest.mark.parametrize("turns", MATRIX)
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_rotation_is_rounded_to_a_quarter_turn_after_a_mirror(turns, mirrored):
    a, b, c, d = (65536 * part for part in MATRIX[turns])
    if mirrored:
        a, b = -a, -b
    for angle in (0, 40, -40):  # turned by some more degrees
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        turned = (a * cos - b * sin, a * sin + b * cos, c * cos - d * sin, c * sin + d * cos)
        numbers = [round(part) for part in turned]
        matrix = struct.pack("=9i", *numbers[:2], 0, *numbers[2:], 0, 5, 5, 1 << 30)
        frame = SimpleNamespace(side_data={"DISPLAYMATRIX": matrix})
        assert scanning.orientation_of(frame) == Orientation(turns, mirrored)
    assert scanning.orientation_of(SimpleNamespace(side_data={})) == UPRIGHT


CROP = "    Side data:\n      Frame Cropping: {}/{}/{}/{}\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (CROP.format(10, 20, 4, 8), Part(0.1, 0.08, 0.7, 0.76)),
        ("", WHOLE),
        ("  Stream #0:2: Video\n" + CROP.format(10, 20, 4, 8), WHOLE),
        (CROP.format(60, 40, 4, 8), WHOLE),  # nothing would be left
        (CROP.format(10, 20, 25, 25), WHOLE),
        (CROP.format(60, 39, 0, 0), Part(0.6, 0, 0.01, 1)),
        (CROP.format(0, 0, 25, 24), Part(0, 0.5, 1, 0.02)),
    ],
)
def test_the_crop_is_that_of_the_stream(text, part):
    """A frame of 100 × 50 pixels, and margins at the left, right, top and bottom."""
    described = "  Stream #0:0: Video\n" + CROP.format(1, 2, 3, 4) + "  Stream #0:1: Video\n" + text
    container = SimpleNamespace(dumps_format=lambda: described)
    file = SimpleNamespace(container=container, stream=SimpleNamespace(index=1))
    level = av.logging.get_level()
    found = scanning.crop_of(file, SimpleNamespace(width=100, height=50))
    assert found == pytest.approx(part)
    assert av.logging.get_level() == level


# The whole scan, of made-up surveys.


@pytest.fixture
def scanned(monkeypatch):
    """Return a function that scans a made-up file of given surveys.

    It returns the scanned video, and what was asked of the surveys and of the other parts.
    """

    def make(file, *surveys, may_be_cropped=False):
        asked = []

        def survey(file, log, *, full, checks_keys):
            asked.append((file.path, full, checks_keys))
            return SimpleNamespace(is_full=full, **left.pop(0))

        @contextlib.contextmanager
        def opened(path, probes):
            asked.append(("opened", probes))
            yield SimpleNamespace(path="again", frames=lambda: iter([PICTURE]))

        def truncation(file, found, end):
            asked.append(("end", round(end, 6)))
            return found.cut

        def entries(path, record, found, **known):
            asked.append(("entries", known))
            return np.array([0, 2])

        left = list(surveys)
        monkeypatch.setattr(scanning, "Survey", survey)
        monkeypatch.setattr(scanning, "open_video", opened)
        monkeypatch.setattr(scanning, "describe_truncation", truncation)
        monkeypatch.setattr(scanning, "describe_damage", lambda found: found.damage)
        monkeypatch.setattr(scanning, "find_entries", entries)
        monkeypatch.setattr(scanning, "crop_of", lambda file, frame: Part(0.25, 0.5, 0.5, 0.25))
        record = scanning._scan_video(file, None, may_be_cropped=may_be_cropped)
        assert left == []
        assert record.keys.tolist() == [0, 2]
        return record, asked

    return make


PICTURE = SimpleNamespace(width=96, height=64, side_data={})
TRUSTED = "matroska,webm"


def found(*packets: int, frames: tuple[int, ...] | None = None, **other: object) -> dict:
    """Return what a survey has found."""
    usual = {"packets": stamps(*packets), "frames": stamps(*(frames or packets)), "first": PICTURE}
    usual |= {"has_doubts": False, "error": "", "decoding_times": [*packets], "failed": 0}
    return usual | {"last": max(packets, default=0), "cut": "", "damage": ""} | other


def large(format=TRUSTED, codec="h264", **parts):
    """Return a file of a large video with two streams."""
    file = file_of(9, format=format, codec=codec, width=1920, height=1080, **parts)
    file.container.streams = [1, 2]
    file.stream.codec_context.codec = SimpleNamespace(intra_only=codec == "prores")
    return file


def test_a_quick_survey_without_doubts_is_enough(scanned):
    record, asked = scanned(large(), found(0, 2, 1, 3, cut="", damage="is damaged"))
    assert asked == [
        ("a.mkv", False, True),
        ("end", 4 / 25),  # the last timestamp, and a frame
        ("entries", {"is_known": True, "is_trusted": True}),
    ]
    assert record.timestamps.tolist() == [0, 1, 2, 3]
    assert record.video == (4, 25.0, 96, 64, None)
    assert (record.streams, record.crop, record.orientation) == (2, WHOLE, UPRIGHT)
    assert (record.damage, record.timing, record.is_in_step) == ("is damaged", "", True)
    assert record.times is None


@pytest.mark.parametrize(
    ("first", "file"),
    [
        (found(0, 2, 1, 3, has_doubts=True), large()),
        (found(0, 1, 1, 3), large()),
        (found(0, 1, 2, 3), large(reorders=True)),
    ],
)
def test_a_survey_with_doubts_is_repeated_as_a_full_one(scanned, first, file):
    full = found(0, 1, 2, 3, frames=(0, 2, 3), failed=1, cut="is truncated", damage="is damaged")
    record, asked = scanned(file, first, full)
    assert asked[:3] == [("a.mkv", False, True), ("opened", False), ("again", True, True)]
    assert record.timestamps.tolist() == [0, 2, 3]
    assert record.damage == "is truncated"


@pytest.mark.parametrize(
    ("file", "checks", "known", "streams"),
    [
        (large("mpeg"), False, True, 0),
        (large("mpeg", "rawvideo"), False, False, 0),
        (large(TRUSTED, "rawvideo"), True, False, 2),
    ],
)
def test_containers_and_codecs_that_are_not_trusted_are_decoded(
    scanned, file, checks, known, streams
):
    record, asked = scanned(file, found(0, 1, 2, 3, has_doubts=True))
    assert asked[0] == ("a.mkv", True, checks)
    assert asked[-1] == ("entries", {"is_known": known, "is_trusted": checks})
    assert record.streams == streams


def test_codecs_without_dependent_frames_are_known(scanned):
    _, asked = scanned(large(TRUSTED, "prores"), found(0, 1, 2))
    assert asked[0] == ("a.mkv", False, True)
    assert asked[-1] == ("entries", {"is_known": True, "is_trusted": True})


def test_a_small_video_is_decoded_at_once(scanned, monkeypatch):
    monkeypatch.setattr(scanning, "FULLY_DECODED", 1 << 40)
    _, asked = scanned(large(), found(0, 1, 2))
    assert asked[0] == ("a.mkv", True, True)


@pytest.mark.parametrize(("streams", "format"), [(2, TRUSTED), (0, "mpeg")])
def test_the_first_frame_is_decoded_if_no_survey_has_seen_it(scanned, streams, format):
    record, asked = scanned(large(format), found(0, 1, 2, first=None))
    assert ("opened", not streams) in asked
    assert record.video.width == 96


def test_frames_without_distinct_timestamps_are_counted(scanned):
    record, _ = scanned(large("mpeg"), found(0, 1, 2, frames=(0, 1, 1)))
    assert (record.timestamps, record.video.frames, record.video.fps) == (None, 3, 25)
    record, _ = scanned(large("avi"), found(0, 1, 2, frames=(0, None, 1)))
    assert (record.timestamps, record.times) == (None, None)


def test_timestamps_against_the_order_of_frames_are_named_in_trusted_containers(scanned):
    said = "has timestamps that contradict the order of its frames"
    slow = (0, 60, 40, 80)
    for format, frames, remark in (
        (TRUSTED, (0, 2, 1, 3), said),
        (TRUSTED, slow, f"{said} and has 0.9375 frames"),
        (TRUSTED, (0, 1, 2, 3), ""),
        ("mpeg", (0, 2, 1, 3), ""),
    ):
        file = large(format, "rawvideo")
        record, _ = scanned(file, found(*range(4), frames=frames))
        assert record.timing.startswith(remark)
        assert bool(record.timing) == bool(remark)


def test_an_avi_file_whose_frames_are_late_is_timed_by_its_packets(scanned):
    """Each frame has the timestamp of the next one, and the rate varies."""
    packets, frames = (0, 1, 2, 3, 40, 41, 42), (1, 2, 3, 40, 41, 42, 90)
    how = {"frames": frames, "decoding_times": [*packets]}
    for format, times in (("avi", packets), ("mpeg", frames)):
        record, _ = scanned(large(format), found(*packets, **how))
        assert record.timestamps.tolist() == [*frames]
        assert record.times.tolist() == [*times]
        assert record.video.moments is not None
    record, _ = scanned(large("avi", reorders=True), found(*packets, **how))
    assert record.times.tolist() == [*frames]


def test_the_shown_size_is_that_of_the_crop_after_the_rotation(scanned):
    matrix = struct.pack("=9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    turned = SimpleNamespace(width=96, height=64, side_data={"DISPLAYMATRIX": matrix})
    for crops, size in ((False, (64, 96)), (True, (16, 48))):
        record, _ = scanned(large(), found(0, 1, 2, first=turned), may_be_cropped=crops)
        assert (record.video.width, record.video.height) == size
        assert record.crop == (Part(0.25, 0.5, 0.5, 0.25) if crops else WHOLE)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (found(error="no key"), "^has no frame that decodes: FFmpeg reports 'no key'$"),
        (found(), "^has no frame that decodes$"),
    ],
)
def test_a_video_without_frames_is_unreadable(scanned, made, said):
    with pytest.raises(UnreadableVideoError, match=said):
        scanned(large("mpeg"), made)


# How a file is opened.


@pytest.fixture
def openings(monkeypatch):
    """Return how files are opened. Each made-up file is of a stream that is given."""

    def make(comment=None, format=TRUSTED, **parts):
        calls = []

        @contextlib.contextmanager
        def opened(path, **how):
            calls.append(how)
            made = file_of(format=format, **parts)
            made.container.metadata = {"comment": comment} if comment else {}
            yield made

        monkeypatch.setattr(scanning, "open_video", opened)
        return calls

    return make


@pytest.mark.parametrize(
    ("is_mp4", "parts", "expected"),
    [
        (False, {}, [{}]),
        (True, {}, [{"probes": False}]),
        (True, {"average_rate": None}, [{"probes": False}, {}]),
        (True, {"width": 0}, [{"probes": False}, {}]),
        (True, {"height": 0}, [{"probes": False}, {}]),
        (True, {"format": "avi"}, [{"probes": False}, {}]),
    ],
)
def test_an_mp4_file_is_probed_only_if_its_header_does_not_describe_it(
    openings, is_mp4, parts, expected
):
    calls = openings(**parts)
    with scanning._open("a", Header(is_mp4=is_mp4)) as file:
        assert file.path == "a.mkv"
    assert calls == expected


@pytest.mark.parametrize(
    ("comment", "prepared", "expected"),
    [
        (None, None, ["video True"]),
        ("another", None, ["video True"]),
        (TAG, "a prepared video", ["prepared"]),
        (TAG, None, ["prepared", "video True"]),
    ],
)
def test_a_file_with_the_mark_is_prepared_unless_its_content_says_otherwise(
    openings, monkeypatch, comment, prepared, expected
):
    done = []
    calls = openings(comment)
    monkeypatch.setattr(scanning, "check_header", lambda path: Header(crops=True))
    monkeypatch.setattr(scanning, "_scan_prepared", lambda *_: done.append("prepared") or prepared)
    monkeypatch.setattr(
        scanning,
        "_scan_video",
        lambda file, log, may_be_cropped: done.append(f"video {may_be_cropped}") or "a video",
    )
    assert scanning._scan_file("a") == (prepared or "a video")
    assert done == expected
    assert len(calls) == len(expected)


@pytest.mark.parametrize("small", [True, False])
def test_a_prepared_video_has_the_times_of_its_packets_and_is_decoded_if_it_is_small(
    monkeypatch, small
):
    packets = [SimpleNamespace(pts=time, size=9) for time in (0, 12, 4, 8)]
    file = file_of(frames=4)
    file.packets = lambda: iter([*packets, SimpleNamespace(pts=None, size=0)])
    file.stream.codec_context.extradata = b"avcC"
    offsets = np.array([5, 90])
    seen = []
    monkeypatch.setattr(scanning, "FULLY_DECODED", 1 << 40 if small else 0)
    monkeypatch.setattr(
        scanning, "group_offsets", lambda stream, given: seen.append(given) or offsets
    )
    monkeypatch.setattr(scanning, "_decode_all", lambda file, given, log: "is damaged")
    record = scanning._scan_prepared(file, None)
    assert seen == [packets]
    assert (record.kind, record.offsets is offsets, record.headers) == (
        Kind.PREPARED,
        True,
        b"avcC",
    )
    assert record.video[:4] == (4, 6.25, 64, 48)  # 4 ticks of 1/25 s from frame to frame
    assert record.damage == ("is damaged" if small else "")
    monkeypatch.setattr(scanning, "group_offsets", lambda stream, given: None)
    assert scanning._scan_prepared(file, None) is None


@pytest.mark.parametrize(
    ("frames", "error", "said"),
    [
        ([[False], [False, False]], "", ""),
        ([[False], [None, True]], "x", "cannot be decoded completely: 2 of 4 frames are damaged"),
        ([[False]], "x", "is damaged: FFmpeg reports 'x'"),
    ],
)
def test_damage_of_a_prepared_video_is_counted_to_its_last_frame(frames, error, said):
    """The decoder holds a whole frame back until the end."""
    made = {
        number: [each if each is None else SimpleNamespace(is_corrupt=each) for each in row]
        for number, row in enumerate(frames)
    }
    made[None] = [SimpleNamespace(is_corrupt=False)]
    file = SimpleNamespace(decode=made.get)
    log = SimpleNamespace(new=lambda: error)
    assert scanning._decode_all(file, range(len(frames)), log) == said


@pytest.mark.parametrize(("count", "damage"), [(1, "has only one frame"), (2, "")])
def test_a_folder_has_the_size_of_its_first_picture_and_30_frames_per_second(
    tmp_path, count, damage
):
    for number in range(count):
        write_jpeg(tmp_path / f"{number}.jpg", 64 + 16 * number, 48)
    record = scan(str(tmp_path))
    assert (record.kind, record.video) == (Kind.FRAMES, (count, 30.0, 64, 48, None))
    assert record.damage.startswith(damage)
    assert bool(record.damage) == bool(damage)


# Several videos.


@pytest.mark.parametrize(
    ("count", "asked", "processes"), [(63, 5, 0), (64, 5, 5), (64, None, 3), (0, None, 0)]
)
def test_many_videos_are_scanned_by_several_processes(monkeypatch, count, asked, processes):
    started = []

    def run_each(work, paths, workers, jobs_per_worker):
        started.append(workers)
        yield from ((path, WorkerCrashed() if path == "3" else f"of {path}") for path in paths)

    monkeypatch.setattr(scanning, "run_each", run_each)
    monkeypatch.setattr(scanning, "available_cores", lambda: 3)
    found = dict(scan_each([*map(str, range(count))], asked))
    assert started == [processes]
    assert len(found) == count
    assert found.get("3", scanning.KILLER) == scanning.KILLER
    assert found.get("4", "of 4") == "of 4"


def test_an_unreadable_video_is_its_reason(tmp_path):
    (tmp_path / "a.mp4").write_text("no video")
    assert list(scan_each([str(tmp_path / "a.mp4")])) == [
        (str(tmp_path / "a.mp4"), "cannot be opened: Invalid data found when processing input")
    ]


# Bad ones.


def no_frames(path):
    with av.open(str(path), "w", format="avi") as container:
        container.add_stream("libx264", rate=30)
        container.start_encoding()


def broken_jpeg(path):
    path.mkdir()
    (path / "1.jpg").write_bytes(b"\xff\xd8 and no more")


def truncated(path):
    write_video(path, grey(24))
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (str, "cannot be opened: No such file"),
        (lambda path: path.write_text("no video\n" * 100), "cannot be opened: Invalid data"),
        (truncated, "Invalid data"),
        (no_frames, "has no frame that decodes"),
        (Path.mkdir, "contains no JPEG files"),
        (broken_jpeg, "1.jpg is not a JPEG"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, make, reason):
    make(tmp_path / "bad.mp4")
    with pytest.raises(UnreadableVideoError, match=reason):
        scan(str(tmp_path / "bad.mp4"))


def test_a_bug_is_not_taken_for_an_unreadable_video(tmp_path, monkeypatch):
    path = write_video(tmp_path / "good.mp4", grey(4))
    monkeypatch.setattr(av, "open", lambda path: None)  # takes fewer arguments
    with pytest.raises(TypeError, match="unexpected keyword"):
        list(scan_each([str(path)]))
