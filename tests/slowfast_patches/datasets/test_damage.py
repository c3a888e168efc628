"""What is said about damage that only a decoder notices, in files that the scan reads fast."""

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import damage, decoding
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.entries import find_entries
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.survey import Survey
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
