"""Headers of MP4 and Matroska files: how many samples they announce, and whether they may crop."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from slowfast_patches.datasets.reading import bounds, video_file
from slowfast_patches.datasets.reading.bounds import Header, check_header
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from tests.slowfast_patches.datasets.public_reports.boxes import box

FTYP = box(b"ftyp", b"isom" + bytes(4))
MATROSKA = b"\x1a\x45\xdf\xa3"


def long_box(kind: bytes, content: bytes) -> bytes:
    """Return an atom with a length field of 64 bits."""
    return struct.pack(">I4sQ", 1, kind, 16 + len(content)) + content


def sizes(count: int, one_size: int = 0) -> bytes:
    return box(b"stsz", struct.pack(">III", 0, one_size, count))


def track(table: bytes, handler: bytes = b"vide", description: bytes = b"") -> bytes:
    """Return a track with a sample table."""
    kind = box(b"hdlr", bytes(8) + handler + bytes(12))
    inside = box(b"stsd", bytes(8) + description) + table
    return box(b"trak", box(b"mdia", kind + box(b"minf", box(b"stbl", inside))))


def check(folder: Path, content: bytes) -> Header:
    path = folder / "a.mp4"
    path.write_bytes(content)
    return check_header(str(path))


def samples(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> int:
    """Return the number of samples and other atoms that a file announces.

    It is the smallest maximum at which the file is accepted.
    """
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        monkeypatch.setattr(bounds, "MAX_SAMPLES", middle)
        try:
            check(folder, content)
            high = middle
        except UnreadableVideoError:
            low = middle
    return high


@pytest.mark.parametrize(
    ("atoms", "count"),
    [
        (b"", 0),
        (box(b"free", b""), 1),
        # moov, trak, mdia, hdlr, minf, stbl and stsd count as 1 each.
        (box(b"moov", track(sizes(40))), 7 + 40),
        (box(b"moov", track(sizes(40)) + track(sizes(50))), 1 + 6 + 40 + 6 + 50),
        (long_box(b"moov", track(sizes(40))), 7 + 40),
        (box(b"moov", track(box(b"stz2", struct.pack(">III", 0, 8, 40)))), 7 + 40),
        (box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 0, 40)))), 2 + 40),
        # Each sample of uncompressed sound has the same size. FFmpeg reads 1024 at once.
        (box(b"moov", track(sizes(4096, one_size=2), b"soun")), 7 + 4),
        (box(b"moov", track(sizes(4096, one_size=2), b"vide")), 7 + 4096),
        (box(b"moov", track(sizes(4096), b"soun")), 7 + 4096),
        (box(b"moov", track(sizes(8, 2), b"soun") + track(sizes(40, 2))), 1 + 6 + 6 + 40),
        # An atom of length 0 extends to the end of the file.
        (struct.pack(">I4s", 0, b"moov") + track(sizes(40)), 7 + 40),
        # Of an atom that is shorter than its header, the rest of the parent is skipped.
        (box(b"moov", struct.pack(">I4s", 7, b"trak") + track(sizes(40))) + box(b"free", b""), 2),
        (box(b"moov", struct.pack(">I4sQ", 1, b"trak", 15) + sizes(40)) + box(b"free", b""), 2),
        # An atom that is longer than its parent ends with it.
        (box(b"moov", struct.pack(">I4s", 999, b"trak") + sizes(40)) + box(b"free", b""), 3 + 40),
        (box(b"moov", struct.pack(">I4sQ", 1, b"trak", 1) + sizes(40)) + box(b"free", b""), 2),
        (box(b"moov", sizes(4096, one_size=1 << 24)), 1 + 4096),  # before a handler says sound
        (box(b"moov", track(sizes(4096, one_size=1 << 24), b"soun")), 7 + 4),
        (box(b"moov", track(sizes(40)) + box(b"free", b"")), 8 + 40),
        # Bytes that are too few for an atom are skipped.
        (box(b"moov", track(sizes(40)) + bytes(7)) + box(b"free", b""), 8 + 40),
        (box(b"mdat", sizes(40)), 1),
    ],
)
def test_samples_are_counted_in_all_tracks_and_other_atoms_once(
    tmp_path, monkeypatch, atoms, count
):
    assert samples(tmp_path, monkeypatch, FTYP + atoms + box(b"mdat", bytes(5000))) == count + 2


def test_a_file_may_have_as_many_samples_as_bytes(tmp_path):
    """`mdat` fills the file up. Seven atoms of the track, `ftyp` and `mdat` count as well."""
    content = FTYP + box(b"moov", track(sizes(4000)))
    for size, is_refused in ((4009, False), (4008, True)):
        whole = content + box(b"mdat", bytes(size - len(content) - 8))
        assert len(whole) == size
        if is_refused:
            with pytest.raises(UnreadableVideoError, match=r"more than 4008 .* than its bytes"):
                check(tmp_path, whole)
        else:
            assert check(tmp_path, whole) == Header(is_mp4=True)


def test_sound_whose_samples_have_several_sizes_counts_in_full(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(FTYP + box(b"moov", track(sizes(1 << 24), b"soun")))
    os.truncate(path, 1 << 23)
    with pytest.raises(UnreadableVideoError, match="than the maximum"):
        check_header(str(path))


def test_the_size_of_a_remote_file_is_that_of_its_content(tmp_path, monkeypatch):
    for module in (bounds, video_file):
        monkeypatch.setattr(module, "is_remote", lambda path: True)
    path = tmp_path / "a.mp4"
    path.write_bytes(FTYP + box(b"moov", track(sizes(4000))) + box(b"mdat", bytes(90)))
    with pytest.raises(UnreadableVideoError, match=f"more than {path.stat().st_size} frames"):
        check_header(str(path))


def test_the_maximum_is_named_if_the_file_is_larger(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_SAMPLES", 100)
    content = FTYP + box(b"moov", track(sizes(101))) + box(b"mdat", bytes(2000))
    with pytest.raises(UnreadableVideoError, match=r"more than 100 .* than the maximum"):
        check(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (FTYP + box(b"moov", track(sizes(1), description=b"avc1clap")), Header(True, True)),
        (FTYP + box(b"moov", track(sizes(1))) + box(b"mdat", b"clap"), Header(True, False)),
        (
            FTYP + box(b"moov", track(b"", description=b"clap") + track(b"")),
            Header(True, True),
        ),
        (MATROSKA + bytes(90) + b"\x54\xbb\x81\4", Header(False, True)),
        (MATROSKA + bytes(90), Header(False, False)),
        (MATROSKA + bytes(5000) + b"\x54\xbb\x81\4", Header(False, False)),
        (b"RIFF\x54\xaa\x81\4", Header(False, False)),
        (b"", Header(False, False)),
    ],
)
def test_the_first_bytes_tell_the_container_and_whether_it_may_crop(tmp_path, content, header):
    assert check(tmp_path, content) == header


def test_a_clean_aperture_behind_the_description_is_none(tmp_path):
    """Only the first 4096 bytes of the description are read, and none after its end."""
    late = track(box(b"free", b"clap"), description=bytes(8))
    assert not check(tmp_path, FTYP + box(b"moov", late)).crops
    long = track(b"", description=bytes(5000) + b"clap")
    assert not check(tmp_path, FTYP + box(b"moov", long)).crops


def test_a_file_that_cannot_be_read_is_left_to_ffmpeg(tmp_path, monkeypatch):
    def fail(path: str) -> None:
        raise PermissionError

    monkeypatch.setattr(bounds, "open_file", fail)
    (tmp_path / "a.mp4").touch()
    assert check_header(str(tmp_path / "a.mp4")) == Header()
    with pytest.raises(UnreadableVideoError, match="cannot be opened"):
        check_header(str(tmp_path / "none.mp4"))
