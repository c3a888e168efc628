"""Tests of JPEG files: what is announced is bounded, and truncated pictures are refused."""

import re
import struct
from functools import partial
from types import SimpleNamespace
from unittest import mock

import cv2
import numpy as np
import pytest

from multigrid import plan_test
from slowfast_patches.datasets.reading import jpeg
from slowfast_patches.datasets.reading.jpeg import jpeg_size, read_jpeg
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError

END = b"\xff\xd9"
PROGRESSIVE = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]
RESTARTS = [cv2.IMWRITE_JPEG_RST_INTERVAL, 3]


def picture(height=96, width=128):
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 2)


def encoded(image=None, options=()):
    _, content = cv2.imencode(".jpg", picture() if image is None else image, [*options])
    return content.tobytes()


def announce(content, width, height):
    """Change the size that a JPEG file announces."""
    place = re.search(rb"\xff[\xc0\xc2]", content).start()
    return content[: place + 5] + struct.pack(">HH", height, width) + content[place + 9 :]


@pytest.fixture
def write(tmp_path):
    def write(content):
        (tmp_path / "a.jpg").write_bytes(content)
        return str(tmp_path / "a.jpg")

    return write


# Without an end (libjpeg-turbo 163).


@pytest.mark.parametrize("options", [(), PROGRESSIVE, RESTARTS])
def test_a_picture_without_an_end_is_read_if_its_data_are_there(write, options):
    content = encoded(options=options)
    expected = read_jpeg("", write(content))
    assert content.endswith(END)
    for cut in (content[:-1], content[:-2], content[:-2] + bytes(40)):
        assert (read_jpeg("", write(cut)) == expected).all()


@pytest.mark.parametrize("options", [(), PROGRESSIVE, RESTARTS])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9, 0.97])
def test_a_truncated_picture_is_refused(write, options, filled, share):
    content = encoded(options=options)
    size = round(share * len(content))
    path = write(content[:size] + bytes(len(content) - size) * filled)
    with pytest.raises(UnreadableVideoError, match=r"is not a (complete )?JPEG file"):
        read_jpeg("", path)


def test_a_progressive_picture_without_its_last_scans_is_refused(write):
    content = encoded(options=PROGRESSIVE)
    *_, last = re.finditer(rb"\xff\xda", content)
    with pytest.raises(UnreadableVideoError, match="is not a complete JPEG file"):
        read_jpeg("", write(content[: last.start()]))


def test_other_files_are_refused(write):
    for content in (b"", b"\xff\xd8", b"\x89PNG" + encoded(), encoded()[1:], encoded()[:40]):
        path = write(content)
        for read in (partial(read_jpeg, ""), jpeg_size):
            with pytest.raises(UnreadableVideoError, match=r"a\.jpg is not a JPEG file"):
                read(path)


# What is announced.


@pytest.mark.parametrize("size", [(30_000, 30_000), (15_000, 12_000), (65_535, 1_025)])
def test_too_many_pixels_are_refused_before_they_are_decoded(write, size):
    path = write(announce(encoded(), *size))
    with mock.patch.object(cv2, "imdecode") as decode:
        for read in (partial(read_jpeg, ""), jpeg_size):
            with pytest.raises(
                UnreadableVideoError, match="has frames of {}×{} pixels".format(*size)
            ):
                read(path)
    assert not decode.called


def test_pixels_are_bounded_in_frames_after_the_first(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(encoded())
    scanned = scan(str(tmp_path))
    (tmp_path / "1.jpg").write_bytes(announce(encoded(), 30_000, 30_000))
    plan = plan_test(scanned.video, frames=3, stride=1, crop=12)
    with pytest.raises(UnreadableVideoError, match="30000×30000"):
        read_clip(str(tmp_path), scanned, plan)


def with_scans(content, count):
    """Repeat the last scan of a progressive picture."""
    *_, last = re.finditer(rb"\xff\xda", content)
    return content[:-2] + content[last.start() : -2] * (count - 10) + END


def test_scans_are_bounded_before_they_are_decoded(write):
    content = encoded(options=PROGRESSIVE)
    path = write(with_scans(content, jpeg.MAX_SCANS))
    with mock.patch.object(jpeg, "_lacks_data", return_value=False):  # repeated scans are odd
        assert read_jpeg("", path).shape == (96, 128, 3)
    many = with_scans(content, jpeg.MAX_SCANS + 1)
    large = announce(with_scans(content, 17), 8192, 8192)
    for bad, scans in ((many, 257), (large, 17)):
        path = write(bad)
        with (
            mock.patch.object(cv2, "imdecode") as decode,
            pytest.raises(UnreadableVideoError, match=f"in {scans} or more scans"),
        ):
            read_jpeg("", path)
        assert not decode.called


def test_segments_and_bytes_are_bounded(write, monkeypatch):
    content = encoded()
    path = write(content[:2] + b"\xff\xfe\0\2" * 5000 + content[2:])
    with pytest.raises(UnreadableVideoError, match="4096 segments"):
        read_jpeg("", path)
    monkeypatch.setattr(jpeg, "MAX_BYTES", len(content) - 1)
    with pytest.raises(UnreadableVideoError, match=f"more than the maximum of {len(content) - 1}"):
        read_jpeg("", write(content))


def test_a_file_may_have_as_many_bytes_and_segments_as_the_maximum(write, monkeypatch):
    content = encoded()
    path = write(content)
    monkeypatch.setattr(jpeg, "MAX_BYTES", len(content))
    last = len(list(jpeg._segments(content))) - 1
    monkeypatch.setattr(jpeg, "_MAX_SEGMENTS", last)
    assert jpeg_size(path) == (128, 96)
    monkeypatch.setattr(jpeg, "_MAX_SEGMENTS", last - 1)
    with pytest.raises(UnreadableVideoError, match=f"and {last} segments"):
        jpeg_size(path)


def test_a_size_in_a_segment_that_is_cut_does_not_count(write):
    content = encoded()
    place = re.search(rb"\xff\xc0", content).start()
    with pytest.raises(UnreadableVideoError, match=r"a\.jpg is not a JPEG file"):
        jpeg_size(write(content[: place + 12]))


def test_a_folder_with_the_name_of_a_picture_is_refused(tmp_path):
    (tmp_path / "a.jpg").mkdir()
    with pytest.raises(UnreadableVideoError, match=r"^a\.jpg cannot be opened: .* regular file"):
        read_jpeg(str(tmp_path), "a.jpg")


@pytest.mark.parametrize(
    ("error", "is_read"),
    [("mjpeg: overread 8", False), ("mjpeg: error y=3 x=0", False), ("mjpeg: unsupported", True)],
)
def test_only_errors_about_the_end_of_the_data_count(write, monkeypatch, error, is_read):
    """The picture is black at its end, so that FFmpeg is asked."""
    image = picture()
    image[-20:] = 0
    monkeypatch.setattr(jpeg, "_is_complete", lambda content: False)
    monkeypatch.setattr(jpeg, "ErrorLog", lambda: SimpleNamespace(new=lambda: error))
    path = write(encoded(image))
    if is_read:
        assert read_jpeg("", path).shape == (96, 128, 3)
        return
    with pytest.raises(UnreadableVideoError, match="is not a complete JPEG file"):
        read_jpeg("", path)


def test_a_grey_picture_without_an_end_is_read(write):
    content = encoded(picture()[..., 0])
    expected = read_jpeg("", write(content))
    assert (read_jpeg("", write(content[:-2])) == expected).all()


# Orientation.


def exif_of(tag: int, value: int) -> bytes:
    field = struct.pack(">HHIHH", tag, 3, 1, value, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + field + bytes(4)


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ([exif_of(0x0112, 6)], (96, 128)),
        ([exif_of(0x0112, 9)], (128, 96)),  # no such orientation
        ([exif_of(0x0100, 6)], (128, 96)),  # another tag
        ([b"Exif\0\0no TIFF"], (128, 96)),
        ([b"http\0" + exif_of(0x0112, 6)], (128, 96)),
        ([exif_of(0x0112, 6), exif_of(0x0112, 3)], (96, 128)),  # the first counts
        ([exif_of(0x0112, 1), exif_of(0x0112, 6)], (96, 128)),
    ],
)
def test_the_orientation_is_that_of_the_exif_data(write, parts, size):
    content = encoded()
    segments = (b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts)
    assert jpeg_size(write(content[:2] + b"".join(segments) + content[2:])) == size


def test_an_orientation_in_xmp_does_not_stretch_a_picture(tmp_path):
    """Exif alone turns a picture, as in ffmpeg and OpenCV."""
    image = np.zeros((120, 240, 3), np.uint8)
    cv2.circle(image, (120, 60), 40, (255, 255, 255), -1)
    content = encoded(image)
    xmp = (
        b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        b'xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
    )
    segment = b"\xff\xe1" + struct.pack(">H", len(xmp) + 2) + xmp
    (tmp_path / "0.jpg").write_bytes(content[:2] + segment + content[2:])
    path = str(tmp_path / "0.jpg")
    assert jpeg_size(path) == read_jpeg("", path).shape[1::-1] == (240, 120)


def test_damaged_exif_data_leave_a_picture_as_it_is_stored(tmp_path):
    content = encoded()
    exif = b"Exif\0\0MM\0*\xff\xff\xff\xff"
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    (tmp_path / "0.jpg").write_bytes(content[:2] + segment + content[2:])
    path = str(tmp_path / "0.jpg")
    assert jpeg_size(path) == read_jpeg("", path).shape[1::-1] == (128, 96)


SAMPLING = cv2.IMWRITE_JPEG_SAMPLING_FACTOR


@pytest.mark.parametrize("mode", [cv2.IMREAD_COLOR, cv2.IMREAD_REDUCED_COLOR_8])
@pytest.mark.parametrize("options", [(), PROGRESSIVE, RESTARTS, (SAMPLING, 0x111111)])
@pytest.mark.parametrize("share", [0.4, 0.7, 0.95])
def test_an_end_marker_after_truncated_data_hides_nothing(write, options, share, mode):
    content = encoded(options=options)
    path = write(content[: int(share * len(content))] + END)
    with pytest.raises(UnreadableVideoError, match="is not a complete JPEG file"):
        read_jpeg("", path, mode)


@pytest.mark.parametrize("options", [(), PROGRESSIVE, RESTARTS])
def test_pictures_with_a_black_border_or_a_second_picture_are_read(write, options):
    image = picture()
    image[-20:] = 0
    content = encoded(image, options)
    for rest in (b"", content, b"no picture"):
        assert np.abs(read_jpeg("", write(content + rest)).astype(int) - image).mean() < 9
