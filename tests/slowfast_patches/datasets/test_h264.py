"""Slices of H.264 (ITU-T H.264, 7.3), written bit by bit, tell whether they are fields."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slowfast_patches.datasets.reading.h264 import field_test

MAIN, HIGH, HIGH_444 = 77, 100, 244
FIELD, FRAME = "1", "0"


def u(size: int, number: int) -> str:
    """Return a number of `size` bits."""
    return f"{number:0{size}b}"


def ue(*numbers: int) -> str:
    """Return Exp-Golomb codes: 0 is 1, 1 is 010, 2 is 011, 3 is 00100."""
    codes = [f"{number + 1:b}" for number in numbers]
    return "".join("0" * (len(code) - 1) + code for code in codes)


def unit(kind: int, bits: str) -> bytes:
    """Return a unit with these bits after its first byte, and with emulation prevention bytes."""
    bits += "1" + "0" * (-(len(bits) + 1) % 8)
    content = int(bits, 2).to_bytes(len(bits) // 8)
    escaped = bytearray()
    for byte in content:
        if escaped[-2:] == b"\0\0" and byte <= 3:
            escaped.append(3)
        escaped.append(byte)
    return bytes([0x60 | kind]) + bytes(escaped)


def parameters(
    profile: int = MAIN,
    *,
    chroma: str = "",
    bits: int = 8,
    order: str = ue(0, 4),
    references: int = 1,
    fields: bool = True,
) -> str:
    """Return a parameter set of pictures of 64 × 64 pixels.

    Args:
        profile: The profile.
        chroma: The part about chroma samples, which only some profiles have.
        bits: Number of bits of a frame number.
        order: The part about the order of pictures.
        references: Number of references.
        fields: Whether the frames may be fields.
    """
    head = u(8, profile) + u(16, 30) + ue(0) + chroma + ue(bits - 4) + order
    return head + ue(references) + "0" + ue(3, 1) + ("0" if fields else "1")


def stream_of(parameter_set: str, size: int = 4, name: str = "h264") -> SimpleNamespace:
    """Return a stream with an avcC header (ISO 14496-15) whose length fields have `size` bytes."""
    content = unit(7, parameter_set)
    header = bytes([1, 100, 0, 30, 0xFC | (size - 1), 0xE1]) + len(content).to_bytes(2) + content
    context = SimpleNamespace(name=name, extradata=header + b"\1\0\4" + unit(8, "1"))
    return SimpleNamespace(codec_context=context)


def slice_of(flag: str, *, kind: int = 5, number: str = u(8, 0), plane: str = "") -> bytes:
    """Return a slice whose header ends with the flag that tells whether it is a field."""
    return unit(kind, ue(0, 7, 0) + plane + number + flag + u(64, 0))


def packet_of(*units: bytes, size: int = 4) -> bytes:
    return b"".join(len(each).to_bytes(size) + each for each in units)


# Each list of 16 or 64 scales is a flag 1 and the differences, or a flag 0. The signed difference 0
# has the code 0, 1 has the code 1, and -8 has the code 16, which ends a list that began with 8.
FLAT_16, FLAT_64, ENDED = "1" + ue(0) * 16, "1" + ue(0) * 64, "1" + ue(16)
UP_AND_DOWN = "1" + ue(*[1, 2] * 8)
FOUR_UP_AND_DOWN = "1" + ue(*[7] * 2, *[16], *[7] * 13)  # 8, 12, 16, 8 and on: never 0
PARAMETERS = {
    "main profile": parameters(),
    "frame numbers of 4 bits": parameters(bits=4),
    "frame numbers of 16 bits": parameters(bits=16),
    "high profile": parameters(HIGH, chroma=ue(1, 0, 0) + "00"),
    "bit depths of 10": parameters(110, chroma=ue(1, 2, 2) + "00"),
    "no chroma": parameters(HIGH, chroma=ue(0, 0, 0) + "00"),
    "4:4:4": parameters(HIGH_444, chroma=ue(3) + "0" + ue(0, 0) + "00"),
    "a scaling matrix without lists": parameters(HIGH, chroma=ue(1, 0, 0) + "01" + "0" * 8),
    "scaling lists": parameters(
        HIGH, chroma=ue(1, 0, 0) + "01" + FLAT_16 * 5 + UP_AND_DOWN + FLAT_64 * 2
    ),
    "short scaling lists": parameters(
        HIGH, chroma=ue(1, 0, 0) + "01" + ENDED * 6 + FLAT_64 + ENDED
    ),
    "scales that change": parameters(
        HIGH, chroma=ue(1, 0, 0) + "01" + FOUR_UP_AND_DOWN + "0" * 5 + FLAT_64 + "0"
    ),
    "twelve scaling lists of 4:4:4": parameters(
        HIGH_444, chroma=ue(3) + "0" + ue(0, 0) + "01" + FLAT_16 * 6 + FLAT_64 * 6
    ),
    "order 1": parameters(order=ue(1) + "0" + ue(2, 3, 0)),
    "order 1 with three offsets": parameters(order=ue(1) + "0" + ue(2, 3, 3, 9, 8, 7)),
    "order 2": parameters(order=ue(2)),
    "many references": parameters(references=16),
}
BITS = {"frame numbers of 4 bits": 4, "frame numbers of 16 bits": 16}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_flag_of_a_slice_is_found_behind_every_parameter_set(name):
    is_field = field_test(stream_of(PARAMETERS[name]))
    ones = "1" * BITS.get(name, 8)
    for number in (ones, ones.replace("1", "0")):
        assert is_field(packet_of(slice_of(FIELD, number=number)))
        assert not is_field(packet_of(slice_of(FRAME, number=number)))


def test_a_slice_of_a_separate_colour_plane_names_the_plane():
    chroma = ue(3) + "1" + ue(0, 0) + "00"
    is_field = field_test(stream_of(parameters(HIGH_444, chroma=chroma)))
    for plane in ("00", "01", "10"):
        assert is_field(packet_of(slice_of(FIELD, plane=plane, number=u(8, 0))))
        assert not is_field(packet_of(slice_of(FRAME, plane=plane, number=u(8, 255))))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_first_slice_counts_behind_units_of_other_kinds(size):
    is_field = field_test(stream_of(parameters(), size))
    delimiter, message = b"\x09\x10", b"\x06" + bytes([255]) * 40
    for kind in (1, 5):
        field, frame = (slice_of(flag, kind=kind) for flag in (FIELD, FRAME))
        assert is_field(packet_of(delimiter, message, field, frame, size=size))
        assert not is_field(packet_of(delimiter, message, frame, field, size=size))
    assert not is_field(packet_of(delimiter, message, size=size))
    assert not is_field(b"")


def test_a_slice_that_ends_within_its_header_is_no_field():
    is_field = field_test(stream_of(parameters(bits=16)))
    assert not is_field(packet_of(b"\x65\x88"))
    assert not is_field(packet_of(b"\x65\0\0\0"))


def test_escaped_zeros_in_a_header_do_not_count():
    """A code that begins with 21 zeros (2^21) gives two zero bytes, before a byte of 1 or 2."""
    is_field = field_test(stream_of(parameters()))
    for flag in (FIELD, FRAME):
        escaped = unit(5, ue(0, 0) + "0" * 21 + "1" + "0" * 21 + u(8, 255) + flag + u(64, 0))
        assert b"\0\0\3" in escaped
        assert is_field(packet_of(escaped)) == (flag == FIELD)


@pytest.mark.parametrize(
    "stream",
    [
        stream_of(parameters(fields=False)),
        stream_of(PARAMETERS["high profile"][:-1] + "1"),
        stream_of(parameters(), name="hevc"),
        stream_of(u(8, MAIN)),  # the parameter set ends too early
        stream_of(u(8, MAIN) + u(16, 30) + "0" * 40),
    ],
)
def test_a_stream_of_frames_or_of_another_form_has_no_fields(stream):
    assert field_test(stream) is None


@pytest.mark.parametrize("header", [None, b"", b"\1\x64\0\x1e\xff\xe1\0", b"\0\0\0\1" + bytes(30)])
def test_a_stream_without_a_header_of_mp4_files_has_no_fields(header):
    context = SimpleNamespace(name="h264", extradata=header)
    assert field_test(SimpleNamespace(codec_context=context)) is None
