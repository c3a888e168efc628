"""Slices of H.264 (ITU-T H.264, 7.3), written bit by bit, tell whether they are fields."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowfast_patches.datasets.reading.h264 import field_test

MAIN = 77
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


def parameters(bits: int = 8, *, fields: bool = True) -> str:
    """Return a parameter set of the main profile whose frame numbers have so many bits."""
    return u(8, MAIN) + u(16, 30) + ue(0, bits - 4, 0, 4, 1) + "0" + ue(3, 1) + str(int(not fields))


def stream_of(parameter_set: str, size: int = 4, name: str = "h264") -> SimpleNamespace:
    """Return a stream with an avcC header (ISO 14496-15) whose length fields have `size` bytes."""
    content = unit(7, parameter_set)
    header = bytes([1, 100, 0, 30, 0xFC | (size - 1), 0xE1]) + len(content).to_bytes(2) + content
    context = SimpleNamespace(name=name, extradata=header + b"\1\0\4" + unit(8, "1"))
    return SimpleNamespace(codec_context=context)


def slice_of(flag: str, *, kind: int = 5) -> bytes:
    """Return a slice of frame 0 with the flag that tells whether it is a field."""
    return unit(kind, ue(0, 7, 0) + u(8, 0) + flag + u(64, 0))


def packet_of(*units: bytes, size: int = 4) -> bytes:
    return b"".join(len(each).to_bytes(size) + each for each in units)


WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""Profiles whose parameter sets describe the chroma samples."""


def signed(number: int) -> str:
    """Return a signed Exp-Golomb code: 0, 1, -1, 2 are the codes of 0, 1, 2, 3."""
    return ue(2 * number - 1 if number > 0 else -2 * number)


@st.composite
def scaling_list(draw: st.DrawFn, size: int) -> str:
    """Return a list of scales as differences. The list begins at 8, and ends with a scale of 0."""
    bits, scale = "1", 8
    for _ in range(size):
        new = draw(st.sampled_from([0, 255, scale, scale + 1, scale - 1, 7, 200]))
        change = (new - scale + 128) % 256 - 128
        bits += signed(change)
        scale = new % 256
        if scale == 0:
            break
    return bits


@st.composite
def chroma_part(draw: st.DrawFn, profile: int) -> tuple[str, bool]:
    """Return the part about chroma samples, and whether the colour planes are separate."""
    if profile not in WITH_CHROMA:
        return "", False
    form = draw(st.integers(0, 3))
    planes = form == 3 and draw(st.booleans())
    bits = ue(form) + (str(int(planes)) if form == 3 else "")
    bits += ue(draw(st.integers(0, 6)), draw(st.integers(0, 6))) + draw(st.sampled_from("01"))
    if not draw(st.booleans()):
        return bits + "0", planes
    lists = [16] * 6 + [64] * (6 if form == 3 else 2)
    return bits + "1" + "".join(draw(st.just("0") | scaling_list(size)) for size in lists), planes


@st.composite
def order_part(draw: st.DrawFn) -> str:
    """Return the part about the order of pictures, of one of three kinds."""
    kind = draw(st.integers(0, 2))
    if kind != 1:
        return ue(kind) + (ue(draw(st.integers(0, 12))) if kind == 0 else "")
    offsets = draw(st.lists(st.integers(-99, 99), max_size=60).map(lambda part: part * 3))
    firsts = signed(draw(st.integers(-9, 9))) + signed(draw(st.integers(-9, 9)))
    return (
        ue(1)
        + draw(st.sampled_from("01"))
        + firsts
        + ue(len(offsets))
        + "".join(map(signed, offsets))
    )


@settings(max_examples=20, deadline=None)
@given(data=st.data(), fields=st.booleans())
def test_the_flag_of_a_slice_is_found_behind_every_parameter_set(data, fields):
    """The parameter set is cut after the flag that says whether frames may be fields."""
    draw = data.draw
    profile = draw(st.sampled_from([66, MAIN, 88, *WITH_CHROMA]))
    chroma, planes = draw(chroma_part(profile))
    bits = draw(st.integers(4, 16))
    head = u(8, profile) + u(16, draw(st.integers(0, 65535))) + ue(draw(st.integers(0, 31)))
    order = draw(order_part()) + ue(draw(st.integers(0, 16))) + draw(st.sampled_from("01"))
    sides = ue(draw(st.integers(0, 300)), draw(st.integers(0, 300)))
    parameter_set = head + chroma + ue(bits - 4) + order + sides + ("0" if fields else "1")
    is_field = field_test(stream_of(parameter_set))
    assert (is_field is not None) == fields
    if not fields:
        return
    codes = ue(*draw(st.tuples(st.integers(0, 8000), st.integers(0, 9), st.integers(0, 255))))
    number = draw(st.text("01", min_size=bits + 2 * planes, max_size=bits + 2 * planes))
    for flag in (FIELD, FRAME):
        rest = draw(st.text("01", min_size=9, max_size=40))
        assert is_field(packet_of(unit(5, codes + number + flag + rest))) == (flag == FIELD)


@pytest.mark.parametrize(("form", "count"), [(1, 8), (3, 12)])
def test_the_first_six_scaling_lists_have_16_scales_and_the_others_64(form, count):
    lists = ["1" + ue(0) * (16 if number < 6 else 64) for number in range(count)]
    chroma = ue(form) + "0" * (form == 3) + ue(0, 0) + "01" + "".join(lists)
    bits = u(8, 100) + u(16, 30) + ue(0) + chroma + ue(4, 0, 4, 1) + "0" + ue(3, 1)
    assert field_test(stream_of(bits + "1")) is None
    is_field = field_test(stream_of(bits + "0"))
    assert is_field(packet_of(slice_of(FIELD)))
    assert not is_field(packet_of(slice_of(FRAME)))


@pytest.mark.parametrize("order", [ue(0, 4), ue(1) + "0" + ue(0, 0, 251) + ue(1000) * 251])
def test_a_parameter_set_without_its_last_byte_is_damaged(order):
    """The number of the set is such that the flag begins a byte, which belongs to another set."""
    sets = (
        u(24, MAIN << 16) + ue(number, 4) + order + ue(1) + "0" + ue(3, 1)
        for number in (0, 1, 3, 7)
    )
    bits = next(bits for bits in sets if len(bits) % 8 == 0)
    content = b"\x67" + int(bits, 2).to_bytes(len(bits) // 8)
    for length, is_damaged in ((len(content), True), (len(content) + 1, False)):
        header = bytes([1, 100, 0, 30, 0xFF, 0xE1]) + length.to_bytes(2) + content + bytes(9)
        context = SimpleNamespace(name="h264", extradata=header)
        assert (field_test(SimpleNamespace(codec_context=context)) is None) == is_damaged


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_first_slice_counts_behind_units_of_other_kinds(size):
    is_field = field_test(stream_of(parameters(), size))
    delimiter, message = b"\x09\x10", b"\x06" + bytes([255]) * 40
    for kind in (1, 5):
        field, frame = (slice_of(flag, kind=kind) for flag in (FIELD, FRAME))
        assert is_field(packet_of(delimiter, message, field, frame, size=size))
        assert not is_field(packet_of(delimiter, message, frame, field, size=size))
    assert not is_field(packet_of(delimiter, message, size=size))
    assert not is_field(packet_of(delimiter, b"", size=size))
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
