"""What containers say about the pictures, and what they leave out."""

from fractions import Fraction

import av
import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from tests.slowfast_patches.datasets.public_reports.boxes import set_aperture, set_crop
from tests.slowfast_patches.datasets.public_reports.numbered import (
    FRAMES,
    SIDE,
    cut,
    encode,
    noisy,
    numbers,
    packets,
    picture,
    write,
)

WIDTH, HEIGHT = 32, 48
LEFT, TOP = 24, 4
"""The part of the pictures that the container shows."""
LEVEL = 3 * np.arange(SIDE, dtype=np.uint8)
RAMP = np.stack(np.broadcast_arrays(LEVEL, LEVEL[:, None], np.uint8(128)), -1)
"""Picture whose red is three times the column, and whose green is three times the row."""


def with_aperture(folder, **how):
    path = write(folder / "a.mp4", images=[RAMP] * 3, pixels="yuv444p", **how)
    centre = (LEFT + WIDTH // 2 - SIDE // 2, TOP + HEIGHT // 2 - SIDE // 2)
    return set_aperture(path, WIDTH, HEIGHT, *centre)


def with_crop(folder):
    path = write(folder / "a.mkv", images=[RAMP] * 3, pixels="yuv444p")
    margins = {"right": SIDE - LEFT - WIDTH, "bottom": SIDE - TOP - HEIGHT}
    return set_crop(path, left=LEFT, top=TOP, **margins)


@pytest.mark.parametrize("make", [with_aperture, with_crop])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_crop_of_a_container_is_applied(tmp_path, make, is_prepared):
    """mpv 16278: the clean aperture of mp4 files, and PixelCrop of Matroska files."""
    path = make(tmp_path)
    if is_prepared:
        target = tmp_path / "prepared.mp4"
        write_prepared(str(path), scan(str(path)), target)
        path = target
    record = scan(str(path))
    assert (record.video.width, record.video.height) == (WIDTH, HEIGHT)
    plan = ClipPlan(np.array([1]), (WIDTH, HEIGHT), (0, 8), WIDTH, False)
    (shown,) = read_clip(str(path), record, plan) / 3
    margin = 3 if is_prepared else 1
    rows, columns = TOP + 8 + np.arange(WIDTH), LEFT + np.arange(WIDTH)
    assert shown[..., 0].mean(0)[2:-2] == pytest.approx(columns[2:-2], abs=margin)
    assert shown[..., 1].mean(1)[2:-2] == pytest.approx(rows[2:-2], abs=margin)


def test_an_encrypted_file_says_so(tmp_path):
    """Bento4 565."""
    key = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "0" * 32}
    how = {"container_options": key | {"encryption_kid": "1" * 32}}
    with pytest.raises(UnreadableVideoError, match="is encrypted"):
        scan(str(write(tmp_path / "a.mp4", **how)))


LIVE = {"container_options": {"live": "1"}}
CUT = {
    "live.webm": ("libvpx", "yuv420p", LIVE),
    "live.mkv": ("libx264", "yuv420p", LIVE),
    "a.gif": ("gif", "rgb8", {}),
    "a.mjpeg": ("mjpeg", "yuvj420p", {}),
    "a.y4m": ("wrapped_avframe", "yuv420p", {}),
}


@pytest.mark.parametrize("name", CUT)
def test_a_file_without_a_duration_that_was_cut_says_so(tmp_path, name):
    codec, pixels, how = CUT[name]
    images = [noisy(number) for number in range(FRAMES)]
    path = write(tmp_path / name, codec, pixels, images=images, **how)
    assert scan(str(path)).damage == ""
    record = scan(str(cut(path, 0.6)))
    assert record.damage
    assert 0.4 * FRAMES < record.video.frames < 0.8 * FRAMES


def test_a_joined_ogg_file_is_read_as_a_whole(tmp_path):
    halves = [range(FRAMES // 2), range(FRAMES // 2, FRAMES)]
    parts = [
        write(tmp_path / f"{half[0]}.ogv", "libvpx", images=[picture(n) for n in half])
        for half in halves
    ]
    path = tmp_path / "joined.ogv"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    record = scan(str(path))
    plan = ClipPlan(np.arange(record.video.frames), (SIDE, SIDE), (0, 0), SIDE, False)
    assert numbers(read_clip(str(path), record, plan)) == [*range(FRAMES)]
    assert "frames are damaged" not in record.damage


RATE, CHUNK = 16_000, 1_024
SOUND = {
    "mkv": ("libx264", "aac"),
    "webm": ("libvpx", "libopus"),
    "flv": ("flv", "aac"),
    "wmv": ("wmv2", "wmav2"),
    "nut": ("mpeg4", "aac"),
    "avi": ("mpeg4", "mp2"),
    "mp4": ("libx264", "aac"),
    "ts": ("libx264", "aac"),
}


def write_with_sound(path, video, sound, seconds):
    """Write the pictures, which last 1.6 s, and silence."""
    frames = [av.VideoFrame.from_ndarray(noisy(n), format="rgb24") for n in range(FRAMES)]
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(video, rate=25)
        stream.height = stream.width = SIDE
        stream.pix_fmt, stream.thread_count = "yuv420p", 1
        audio = container.add_stream(sound, rate=RATE, layout="mono")
        audio.bit_rate = RATE * 2
        resampler = av.AudioResampler(audio.format, audio.layout, RATE, audio.frame_size or CHUNK)
        for start in range(0, int(seconds * RATE), CHUNK):
            silence = av.AudioFrame.from_ndarray(np.zeros((1, CHUNK), np.int16), "s16", "mono")
            silence.sample_rate, silence.pts, silence.time_base = RATE, start, Fraction(1, RATE)
            for chunk in resampler.resample(silence):
                container.mux(audio.encode(chunk))
        container.mux(audio.encode())
        encode(container, stream, frames)
    return path


@pytest.mark.parametrize("suffix", SOUND)
def test_a_video_that_ends_before_its_sound_is_complete(tmp_path, suffix):
    """Matroska, FLV, ASF and NUT state only the duration of the longest stream."""
    path = write_with_sound(tmp_path / f"a.{suffix}", *SOUND[suffix], seconds=6)
    record = scan(str(path))
    assert (record.video.frames, record.damage) == (FRAMES, "")
    both = write_with_sound(tmp_path / f"b.{suffix}", *SOUND[suffix], seconds=1.6)
    assert scan(str(both)).damage == ""
    assert scan(str(cut(both, 0.5))).damage != ""


def test_a_truncated_mp4_file_that_begins_late_says_so(tmp_path):
    """An empty edit delays the video, so it ends later than its duration although it is cut."""
    whole = range(100, 100 + FRAMES)
    how = {"stamps": whole, "container_options": {"movflags": "faststart"}}
    path = write(tmp_path / "a.mp4", options={"bf": "0"}, **how)
    assert scan(str(path)).damage == ""
    last = list(packets(path))[23]
    path.write_bytes(path.read_bytes()[: last.pos + last.size])
    record = scan(str(path))
    assert record.video.frames == 24
    assert record.damage == f"is truncated: 24 of about {FRAMES} frames are there"
