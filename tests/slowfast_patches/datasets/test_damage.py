"""What is said about damage that only a decoder notices, in files that the scan reads fast."""

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import damage, decoding
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.damage import describe_damage
from slowfast_patches.datasets.reading.entries import find_entries
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.survey import Stamp, Survey
from slowfast_patches.datasets.reading.video_file import ErrorLog, UnreadableVideoError, open_video
from tests.slowfast_patches.datasets.public_reports.numbered import (
    FRAMES,
    SIDE,
    noisy,
    numbers,
    overwrite,
    packets,
    write,
)

PLAIN = {"bf": "0", "x264-params": "keyint=20:scenecut=0"}


# What is said of the numbers that a scan found.


class Data(bytes):
    """Packet of these bytes."""

    is_corrupt = False


def stream_of(name: str, extradata: bytes | None) -> SimpleNamespace:
    return SimpleNamespace(codec_context=SimpleNamespace(name=name, extradata=extradata))


@pytest.mark.parametrize(
    ("name", "header", "size"),
    [
        ("h264", b"\1\x64\0\x1e\xff", 4),
        ("h264", b"\1\x64\0\x1e\xfd", 2),
        ("hevc", b"\1" + bytes(20) + b"\xff", 4),
        ("hevc", b"\1" + bytes(20) + b"\xfc", 1),
    ],
)
def test_a_packet_of_units_is_whole_if_their_lengths_fill_it(name, header, size):
    looks_whole = damage.looks_whole(stream_of(name, header))
    units = (3).to_bytes(size) + b"abc" + (1).to_bytes(size) + b"d"
    assert looks_whole(Data(units))
    for wrong in (units[:-1], units + b"\0", units + bytes(size), units + b"\1" * size):
        assert not looks_whole(Data(wrong))


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("vp9", b"\1\x64\0\x1e\xff"),
        ("h264", b"\0\0\0\1\x67"),
        ("h264", b"\1\x64\0\x1e"),
        ("hevc", b"\1" + bytes(20)),
        ("h264", None),
    ],
)
def test_other_packets_are_whole_if_they_do_not_begin_with_zeros(name, header):
    looks_whole = damage.looks_whole(stream_of(name, header))
    assert looks_whole(Data(bytes(7) + b"\1"))
    assert not looks_whole(Data(bytes(8) + b"\1"))
    marked = Data(b"\1" * 9)
    assert looks_whole(marked)
    marked.is_corrupt = True
    assert not looks_whole(marked)


def video_of(
    format: str,
    *,
    size: int = 1000,
    duration: float | None = None,
    of_stream: float | None = None,
    frames: int = 0,
) -> SimpleNamespace:
    """Return a file whose container and stream state durations in seconds, at 25 fps."""
    ticks = None if of_stream is None else round(of_stream * 25)
    container = SimpleNamespace(
        format=SimpleNamespace(name=format),
        size=size,
        duration=None if duration is None else round(duration * 1_000_000),
    )
    stream = SimpleNamespace(
        duration=ticks, time_base=Fraction(1, 25), average_rate=Fraction(25), frames=frames
    )
    return SimpleNamespace(format=format, path="a", container=container, stream=stream)


def survey_of(count: int, first: int | None = 0, **found: object) -> SimpleNamespace:
    return SimpleNamespace(packets=[Stamp(first, True)] * count, **found)


MP4 = "mov,mp4,m4a,3gp,3g2,mj2"


@pytest.mark.parametrize(
    ("file", "first", "end", "total"),
    [
        # Half a second may be missing of 10 s, and 2 % of 40 s.
        (video_of(MP4, of_stream=10, duration=99), 0, 9.5, None),
        (video_of(MP4, of_stream=10, duration=99), 0, 9.4, 213),  # 200 · 10 / 9.4
        (video_of(MP4, of_stream=40), 0, 39.2, None),
        (video_of(MP4, of_stream=40), 0, 39.1, 205),
        # The duration of an mp4 stream counts from its first frame, here at 50 / 25 s.
        (video_of(MP4, of_stream=10), 50, 11.5, None),
        (video_of(MP4, of_stream=10), 50, 11.4, 213),
        (video_of(MP4, of_stream=10), -50, 9.5, None),
        (video_of(MP4, of_stream=10), None, 9.5, None),
        (video_of("avi", frames=250, of_stream=1), 50, 9.5, None),
        (video_of("avi", frames=250, of_stream=1), 50, 9.4, 213),
        (video_of("matroska,webm", duration=10), 50, 9.5, None),
        (video_of("matroska,webm", duration=10), 50, 9.4, 213),
        (video_of("matroska,webm"), 0, 1, None),
        (video_of("mpeg", duration=10), 0, 1, None),
    ],
)
def test_a_video_is_truncated_if_more_than_a_little_is_missing(
    monkeypatch, file, first, end, total
):
    monkeypatch.setattr(damage, "_others_last", lambda file, seconds: False)
    said = damage.describe_truncation(file, survey_of(200, first), end)
    expected = f"is truncated: 200 of about {total} frames are there" if total else ""
    assert said == expected


def test_a_video_may_end_before_another_stream(monkeypatch):
    asked = []
    monkeypatch.setattr(damage, "_others_last", lambda file, least: asked.append(least) or True)
    assert damage.describe_truncation(video_of("flv", duration=40), survey_of(9), 5) == ""
    assert asked == [pytest.approx(39.2)]


@pytest.mark.parametrize(
    ("file", "end", "is_cut"),
    [
        (video_of("mpegts", size=188 * 7), 0, False),
        (video_of("mpegts", size=192 * 7), 0, False),
        (video_of("mpegts", size=204 * 7), 0, False),
        (video_of("mpegts", size=188 * 7 + 1), 0, True),
        (video_of("mpeg", size=188 * 7 + 1), 0, False),
        (video_of("yuv4mpegpipe", size=1000), 1000, False),
        (video_of("yuv4mpegpipe", size=1000), 999, True),
        (video_of("dv", size=1000), 1001, True),
        (video_of("mpeg", size=1000), 999, False),
        (video_of("asf", duration=4), 0, False),
        (video_of("asf"), 0, True),
    ],
)
def test_a_container_without_a_duration_is_cut_within_a_packet(file, end, is_cut):
    said = damage.describe_truncation(file, survey_of(9, end=end), 4.0)
    assert said == ("is truncated: only 9 frames are there" if is_cut else "")


def test_damage_of_a_survey_is_told_by_its_worst_kind():
    found = {"damaged": 3, "failed": 2, "frames": [0] * 8, "begins_with_key": False, "error": "x"}
    assert describe_damage(survey_of(9, **found)) == (
        "cannot be decoded completely: 3 of 10 frames are damaged"
    )
    found["damaged"] = 0
    assert describe_damage(survey_of(9, **found)) == (
        "begins without a key frame, so 1 of 9 frames are missing"
    )
    found["begins_with_key"] = True
    assert describe_damage(survey_of(9, **found)) == "is damaged: FFmpeg reports 'x'"
    found["error"] = ""
    assert describe_damage(survey_of(9, **found)) == ""


def test_damage_is_told_once_per_file_until_it_is_forgotten(caplog):
    for path, what in (("a", "first"), ("a", "second"), ("b", "third")):
        damage.warn_of_damage(path, what)
    assert [(record.args[0], record.args[1]) for record in caplog.records] == [
        ("a", "first"),
        ("b", "third"),
    ]
    assert [damage.damage_found(path) for path in "abc"] == ["first", "third", ""]
    damage.forget_damage("a")
    damage.forget_damage("c")
    assert [damage.damage_found(path) for path in "ab"] == ["", "third"]
    damage.warn_of_damage("a", "again")
    assert damage.damage_found("a") == "again"


# Files.


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Scan as if all files were large, and forget earlier warnings."""
    monkeypatch.setattr(scanning, "FULLY_DECODED", 0)
    monkeypatch.setattr(damage, "_warned", {})
    monkeypatch.setattr(decoding, "_unreliable", set())


@pytest.fixture
def path(tmp_path):
    images = [noisy(number) for number in range(FRAMES)]
    return write(tmp_path / "a.mp4", options=PLAIN, images=images)


def scramble(path, number):
    """Change bytes in the middle of a frame, behind its headers."""
    packet = list(packets(path))[number]
    content = bytearray(path.read_bytes())
    middle = packet.pos + packet.size // 2
    content[middle : middle + 8] = b"\x55" * 8
    path.write_bytes(content)


def clip(path, record, indices):
    plan = ClipPlan(np.array(indices), (SIDE, SIDE), (0, 0), SIDE, False)
    return read_clip(str(path), record, plan)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_damaged_picture_is_named_once_when_it_is_read(tmp_path, path, caplog, is_prepared):
    if is_prepared:
        target = tmp_path / "prepared.mp4"
        write_prepared(str(path), scan(str(path)), target)
        path = target
    scramble(path, 1 if is_prepared else 8)
    record = scan(str(path))
    assert record.damage == ""
    for _ in range(2):
        clip(path, record, list(range(FRAMES)))
    (said,) = [entry.getMessage() for entry in caplog.records]
    assert said.startswith(f"{path} is damaged: ")


def test_prepare_names_a_damaged_picture(tmp_path, path, caplog):
    scramble(path, 8)
    write_prepared(str(path), scan(str(path)), tmp_path / "prepared.mp4")
    assert f"{path} is damaged: " in caplog.text


def test_nothing_is_said_about_a_whole_file(path, caplog):
    caplog.set_level(logging.DEBUG)
    record = scan(str(path))
    for first in range(0, FRAMES, 7):
        assert numbers(clip(path, record, [first])) == [first]
    assert "damaged" not in caplog.text


def test_a_frame_that_stopped_to_decode_is_replaced_by_the_one_before_it(path, caplog):
    record = scan(str(path))
    overwrite(path, slice(19, 20))  # the last frame before a key frame
    assert numbers(clip(path, record, [17, 18, 19, 21])) == [17, 18, 18, 21]
    assert f"{path} is damaged: " in caplog.text
    with pytest.raises(UnreadableVideoError, match="did not return frame 19"):
        clip(path, record, [19])


def test_a_packet_that_does_not_decode_is_found_by_a_fast_scan(path):
    overwrite(path, slice(19, 20))
    record = scan(str(path))
    assert record.video.frames == FRAMES - 1
    assert record.damage == f"cannot be decoded completely: 1 of {FRAMES} frames are damaged"


def test_a_seek_in_an_avi_file_must_give_a_packet_of_the_whole_file(tmp_path):
    """After a lost packet, the timestamps of a seek are not those of a read from the beginning."""
    path = str(write(tmp_path / "a.avi", "mjpeg", "yuvj420p"))
    with open_video(path) as file:
        found = Survey(file, ErrorLog(), full=True, checks_keys=False)
    found.places = {(time, place) for time, place in found.places if time < 20}
    entries = find_entries(path, scan(path), found, is_known=True, is_trusted=False)
    assert entries.tolist() == [*range(20)]


def test_a_gif_picture_that_contains_later_pictures_is_named(tmp_path):
    images = [noisy(number) for number in range(FRAMES)]
    path = write(tmp_path / "a.gif", "gif", "rgb8", images=images)
    assert scan(str(path)).damage == ""
    first, second = (packet.pos for packet in list(packets(path))[20:22])
    content = bytearray(path.read_bytes())
    middle = (first + second) // 2
    content[middle : second + 200] = bytes([255]) * (second + 200 - middle)
    path.write_bytes(content)
    assert "frames are damaged" in scan(str(path)).damage


def test_an_error_belongs_to_the_thread_that_decodes(path, caplog):
    """Repeated errors count, and nothing is printed for threads without an `ErrorLog`."""

    def read_damaged() -> str:
        log = ErrorLog()
        for packet in (b"\0\0\0\1\x65no slice", b"\0\0\0\1\x65no slice"):
            log.new()
            with contextlib.suppress(av.FFmpegError):
                av.CodecContext.create("h264", "r").decode(av.Packet(packet))
        return log.new()

    ours = ErrorLog()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(read_damaged).result()
    assert theirs.startswith("h264: ")
    assert ours.new() == ""
    assert read_damaged() == ours.new() == theirs
    assert not [record for record in caplog.records if record.name.startswith("libav")]
