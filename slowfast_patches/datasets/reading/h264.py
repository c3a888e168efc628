"""Parse H.264 headers (ITU-T H.264, 7.3.2.1 and 7.3.3) to find packets with half a frame."""

from __future__ import annotations

from collections.abc import Callable

from av.packet import Packet
from av.video.stream import VideoStream

_WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""Values of profile_idc for which the parameter set describes the chroma samples."""
_SLICES = (1, 5)  # nal_unit_type: slice of a picture, slice of an IDR picture
_HEADER = 16
"""Number of bytes of a slice that contain the parsed part of its header."""


class _Bits:
    """Reader of the bits of an H.264 unit, without the first byte of the unit."""

    def __init__(self, unit: bytes) -> None:
        content = unit[1:].replace(b"\0\0\3", b"\0\0")
        self._bits = "".join(f"{byte:08b}" for byte in content)
        self._position = 0

    def number(self, count: int) -> int:
        """Read an unsigned number of `count` bits."""
        start = self._position
        self._position += count
        return int(self._bits[start : self._position], 2)

    def golomb(self) -> int:
        """Read an unsigned Exp-Golomb code."""
        zeros = self._bits.index("1", self._position) - self._position
        self._position += zeros
        return self.number(zeros + 1) - 1

    def skip(self, *codes: int) -> None:
        """Skip fields. A positive code is a number of bits, and 0 is an Exp-Golomb code."""
        for code in codes:
            if code:
                self._position += code
            else:
                self.golomb()

    def skip_scaling_list(self, size: int) -> None:
        """Skip a list of differences (7.3.2.1.1.1). The list ends when the scale becomes 0."""
        scale = 8
        for _ in range(size):
            code = self.golomb()
            scale = (scale + (code + 1) // 2 * (1 if code % 2 else -1)) % 256
            if not scale:
                return


def field_test(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool] | None:
    """Return a function that tells whether a packet of a stream begins with a field.

    A field consists of every other line of a frame. Return None if the stream cannot have fields,
    or is not H.264 in an mp4 or Matroska file.
    """
    header = stream.codec_context.extradata or b""  # avcC, see ISO 14496-15
    if stream.codec_context.name != "h264" or header[:1] != b"\1":
        return None
    try:
        size = (header[4] & 3) + 1
        skipped = _bits_before_flag(_Bits(header[8 : 8 + int.from_bytes(header[6:8])]))
    except (IndexError, ValueError):  # the parameter set is damaged
        return None
    if skipped is None:
        return None
    return lambda packet: _begins_with_field(memoryview(packet), size, skipped)


def _bits_before_flag(bits: _Bits) -> int | None:
    """Parse a sequence parameter set.

    Returns:
        The number of bits between the first three codes of a slice and the flag that tells whether
        the slice is that of a field. None if the stream can have no fields.
    """
    profile = bits.number(8)
    bits.skip(16, 0)
    has_planes = 0
    if profile in _WITH_CHROMA:
        chroma = bits.golomb()
        if chroma == 3:
            has_planes = bits.number(1)
        bits.skip(0, 0, 1)
        if bits.number(1):
            for number in range(12 if chroma == 3 else 8):
                if bits.number(1):
                    bits.skip_scaling_list(16 if number < 6 else 64)
    frame_number = bits.golomb() + 4
    order = bits.golomb()
    if order == 0:
        bits.skip(0)
    elif order == 1:
        bits.skip(1, 0, 0)
        bits.skip(*[0] * bits.golomb())
    bits.skip(0, 1, 0, 0)
    # If the planes are separate, the plane of a slice (2 bits) precedes the frame number.
    return None if bits.number(1) else 2 * has_planes + frame_number


def _begins_with_field(data: memoryview, size: int, skipped: int) -> bool:
    """Return whether the first slice in a packet is that of a field."""
    position = 0
    while position + size < len(data):
        start = position + size
        if data[start] & 31 in _SLICES:
            bits = _Bits(bytes(data[start : start + _HEADER]))
            try:
                bits.skip(0, 0, 0, skipped)
                return bool(bits.number(1))
            except ValueError:
                return False
        position = start + int.from_bytes(data[position:start])
    return False
