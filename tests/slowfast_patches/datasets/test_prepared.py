"""Groups of pictures of prepared videos, built from units of bytes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import prepared, video_file
from slowfast_patches.datasets.reading.prepared import (
    GROUP,
    Picture,
    decode_prepared,
    group_offsets,
    split_group,
)
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError, open_video
from tests.slowfast_patches.datasets.made_videos import noise, write_video
from tests.slowfast_patches.datasets.public_reports.numbered import packets

KEY, REFERENCE, OTHER, MESSAGE = 0x65, 0x41, 0x01, 0x06
"""First bytes of units: three kinds of slices, by nal_ref_idc and nal_unit_type, and a message."""


def unit(first: int, size: int = 9) -> bytes:
    return size.to_bytes(4) + bytes([first]) + bytes(size - 1)


def test_pictures_behind_an_anchor_are_shown_before_it():
    """The stream I P b b P b is displayed as 0: I, 1 and 2: b, 3: P, 4: b, 5: P."""
    units = [KEY, REFERENCE, OTHER, OTHER, REFERENCE, OTHER]
    sizes = [30, 20, 5, 6, 21, 7]
    data = b"".join(map(unit, units, sizes))
    found = split_group(data)
    assert [(picture.number, picture.is_reference) for picture in found] == [
        (0, True),
        (3, True),
        (1, False),
        (2, False),
        (5, True),
        (4, False),
    ]
    ends = np.cumsum([4 + size for size in sizes]).tolist()
    assert [picture.start for picture in found] == [0, *ends[:-1]]
    assert [picture.stop for picture in found] == ends


def test_other_units_belong_to_the_picture_after_them():
    data = unit(MESSAGE, 3) + unit(KEY) + unit(MESSAGE, 5) + unit(0x09, 2) + unit(REFERENCE)
    assert split_group(data) == [
        Picture(0, True, 0, 7 + 13),
        Picture(1, True, 20, 20 + 9 + 6 + 13),
    ]


DAMAGED = "a group of pictures is damaged"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (unit(KEY)[:-1], DAMAGED),
        (unit(KEY) + b"\0\0\0\1", DAMAGED),
        (unit(KEY) + b"\0\0", DAMAGED),
        (unit(KEY) + bytes(4), DAMAGED),
        (bytes(40), DAMAGED),
        (unit(OTHER) + unit(KEY), "does not begin with an anchor"),
        (unit(MESSAGE), "does not begin with an anchor"),
        (b"", "does not begin with an anchor"),
    ],
)
def test_bytes_that_are_no_group_are_refused(data, said):
    with pytest.raises(UnreadableVideoError, match=said):
        split_group(data)


def test_a_unit_may_have_a_single_byte():
    assert split_group(unit(KEY, 1)) == [Picture(0, True, 0, 5)]


# Which streams are in the prepared form.


def packet(first: int, number: int, position: int, *, is_key: bool = False) -> SimpleNamespace:
    content = unit(first)

    class Packet(SimpleNamespace):
        def __bytes__(self) -> bytes:
            return content

    return Packet(pts=number, is_keyframe=is_key, pos=position, size=len(content))


def stream_of(header: bytes = b"\1\x64\0\x1e\xff", name: str = "h264") -> SimpleNamespace:
    return SimpleNamespace(codec_context=SimpleNamespace(name=name, extradata=header))


def two_groups() -> list[SimpleNamespace]:
    """Packets of 48 pictures, of which the last is an anchor, and of 2 more, from byte 100 on."""
    firsts = [KEY, REFERENCE, *[OTHER] * (GROUP - 2), KEY, REFERENCE]
    numbers = [0, GROUP - 1, *range(1, GROUP - 1), GROUP, GROUP + 1]
    return [
        packet(first, 10 * number, 100 + 13 * place, is_key=first == KEY)
        for place, (first, number) in enumerate(zip(firsts, numbers, strict=True))
    ]


def test_offsets_are_the_beginnings_of_groups_and_the_end():
    assert group_offsets(stream_of(), two_groups()).tolist() == [100, 724, 750]


def without_a_key(packets):
    packets[GROUP].is_keyframe = False


def with_another_key(packets):
    packets[3].is_keyframe = True


def without_a_time(packets):
    packets[3].pts = None


def with_equal_times(packets):
    packets[3].pts = packets[2].pts


def in_another_order(packets):
    packets[2].pts, packets[3].pts = packets[3].pts, packets[2].pts


def with_a_gap(packets):
    packets[-1].pos += 1


def with_another_size(packets):
    packets[2].size -= 1
    packets[3].pos -= 1
    packets[3].size += 1


def with_damage(packets):
    packets[2].__class__.__bytes__ = lambda self: unit(OTHER)[:-1]


@pytest.mark.parametrize(
    "change",
    [
        without_a_key,
        with_another_key,
        without_a_time,
        with_equal_times,
        in_another_order,
        with_a_gap,
        with_another_size,
        with_damage,
        list.clear,
    ],
)
def test_packets_in_another_form_are_not_prepared(change):
    packets = two_groups()
    change(packets)
    assert group_offsets(stream_of(), packets) is None


@pytest.mark.parametrize(
    "header", [None, b"", b"\1\x64\0\x1e", b"\0\x64\0\x1e\xff", b"\1\x64\0\x1e\xfe"]
)
def test_length_fields_must_have_4_bytes(header):
    assert group_offsets(stream_of(header), two_groups()) is None


def test_a_stream_that_may_have_fields_is_not_prepared(monkeypatch):
    monkeypatch.setattr(prepared, "field_test", lambda stream: bool)
    assert group_offsets(stream_of(), two_groups()) is None


# Files.


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    source = str(write_video(folder / "source.mp4", noise(2 * GROUP + 9)))
    write_prepared(source, scan(source), folder / "a.mp4", short_side=32)
    return folder / "a.mp4"


def test_offsets_of_a_file_are_the_positions_of_its_packets(path):
    places = [packet.pos for packet in packets(path)]
    with open_video(str(path)) as file:
        found = group_offsets(file.stream, [p for p in file.packets() if p.size])
    assert found[:-1].tolist() == places[::GROUP]
    assert scan(str(path)).offsets.tolist() == found.tolist()


def test_pictures_that_no_wanted_picture_depends_on_are_not_decoded(path, monkeypatch):
    """Picture 5 needs I and P12. Picture 20 needs P24 as well."""
    sent = []
    decoder = prepared._decoder(0, scan(str(path)).headers)

    def decode(packet):
        sent.append(None if packet is None else packet.pts)
        return decoder.decode(packet)

    spy = SimpleNamespace(decode=decode, flush_buffers=decoder.flush_buffers)
    monkeypatch.setattr(prepared, "_decoder", lambda thread, headers: spy)
    frames = decode_prepared(str(path), scan(str(path)), [5, 20, 20, GROUP])
    assert [number for number, _ in frames] == [5, 20, GROUP]
    assert sent == [0, 12, 5, 24, 20, None, 0, None]


def test_a_file_that_has_become_shorter_is_unreadable_and_the_next_is_read(path, tmp_path):
    record = scan(str(path))
    short = tmp_path / "short.mp4"
    short.write_bytes(path.read_bytes()[: int(record.offsets[1]) - 1])
    with pytest.raises(UnreadableVideoError, match="has become shorter"):
        list(decode_prepared(str(short), record, [3]))
    assert prepared._decoder.cache_info().currsize == 0, "it may be in the middle of a group"
    assert [number for number, _ in decode_prepared(str(path), record, [3])] == [3]


def test_damaged_frames_and_errors_of_ffmpeg_are_named_by_their_place_in_the_file(
    path, monkeypatch
):
    """Frame 3 of the second group is frame 51 of the file."""
    said = []

    def decode_group(decoder, data, wanted):
        yield from ((number, SimpleNamespace(is_corrupt=number == 3)) for number in sorted(wanted))

    monkeypatch.setattr(prepared, "_decode_group", decode_group)
    monkeypatch.setattr(prepared, "warn_of_damage", lambda path, what: said.append(what))
    errors = iter(["", "error while decoding"])
    monkeypatch.setattr(prepared, "ErrorLog", lambda: SimpleNamespace(new=lambda: next(errors)))
    frames = decode_prepared(str(path), scan(str(path)), [2, GROUP + 3, GROUP + 4])
    assert [number for number, _ in frames] == [2, GROUP + 3, GROUP + 4]
    assert said == ["frame 51 is damaged", "FFmpeg reports 'error while decoding'"]


def test_a_pipe_in_place_of_a_prepared_file_is_not_opened(path, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(prepared, "read_range", None)
    with pytest.raises(UnreadableVideoError, match="not a regular file"):
        list(decode_prepared(str(tmp_path / "pipe"), scan(str(path)), [3]))


def test_a_remote_file_is_read_with_one_request_and_a_local_one_group_by_group(path, monkeypatch):
    record = scan(str(path))
    starts = record.offsets.tolist()
    ranges = []

    def read_range(name: str, start: int, stop: int) -> bytes:
        ranges.append((start, stop))
        return path.read_bytes()[start:stop]

    monkeypatch.setattr(prepared, "read_range", read_range)
    wanted = [3, 2 * GROUP]
    for module in (prepared, video_file):
        monkeypatch.setattr(module, "is_remote", lambda path: path == "s3://a.mp4")
    local, remote = (
        [(n, frame.to_ndarray().tobytes()) for n, frame in decode_prepared(name, record, wanted)]
        for name in (str(path), "s3://a.mp4")
    )
    assert local == remote
    assert ranges == [(starts[0], starts[1]), (starts[2], starts[3]), (starts[0], starts[3])]
