"""The prepared form of a video, and how a clip is decoded from it.

A prepared video is an mp4 file with one H.264 stream of closed groups of GROUP pictures. Each group
can be decoded on its own. It has a key frame (I), an anchor (P) every ANCHOR pictures and at the
end, and between anchors pictures that no other picture refers to (b):

    decoded     I  P12  b1 b2 ... b11  P24  b13 ... b23  P36 ...  P47  b37 ... b46
    a clip of   frames 5 and 20:   I  P12  b5  P24  b20      5 of 48 pictures are decoded

Every player can play the file, and every reader can seek in it. This module does not open it as a
container. It reads each group with one call, because the index stores where groups begin. The
headers of the units give the rest (ITU-T H.264, 7.3.1: nal_ref_idc and nal_unit_type).

The stream uses CAVLC entropy coding and no deblocking, which halves the cost of decoding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import av
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from slowfast_patches.datasets.reading.containers import check_regular
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError, VideoRecord

GROUP = 48
"""Pictures in a group; the last group of a video may have fewer."""
ANCHOR = 12
"""Pictures from one anchor to the next."""
TAG = f"multigrid-1 group={GROUP}"
"""Comment in the file's metadata, by which `scan` recognizes a prepared file."""

_PICTURES = (1, 5)  # nal_unit_type: slice of a picture, slice of an IDR picture
_LENGTH = 4
"""Bytes of the length field of each unit. Every muxer writes 4 (avcC: lengthSizeMinusOne 3)."""


class Picture(NamedTuple):
    """Coded picture of a group.

    Attributes:
        number: Its position in display order.
        is_reference: Whether other pictures refer to it.
        start: Where its bytes begin in the group.
        stop: Where its bytes end.
    """

    number: int
    is_reference: bool
    start: int
    stop: int


def split_group(data: bytes) -> list[Picture]:
    """Split a group into its pictures, in decoding order.

    Raises:
        UnreadableVideoError: The bytes are not a group in the prepared form.
    """
    units = list[tuple[bool, int, int]]()
    position = 0
    start = 0
    while position < len(data):
        header = position + _LENGTH
        position = header + int.from_bytes(data[position:header])
        if not header < position <= len(data):
            raise UnreadableVideoError("cannot be decoded: a group of pictures is damaged")
        if data[header] & 31 in _PICTURES:
            units.append((data[header] & 96 != 0, start, position))
            start = position
    anchors = [order for order, (is_reference, _, _) in enumerate(units) if is_reference]
    if anchors[:1] != [0]:
        raise UnreadableVideoError("cannot be decoded: a group does not begin with an anchor")
    # Pictures that follow an anchor in decoding order precede it in display order.
    following = dict(pairwise([*anchors, len(units)]))
    return [Picture(following.get(order, order) - 1, *unit) for order, unit in enumerate(units)]


def decode_prepared(
    path: str, record: VideoRecord, wanted: list[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (number, frame) for each wanted frame of a prepared file.

    Args:
        path: The prepared file.
        record: Its record.
        wanted: Frame numbers, ascending.

    Raises:
        UnreadableVideoError: The file does not match the index.
    """
    assert record.offsets is not None
    check_regular(path)  # reading from a pipe could block forever
    decoder = _decoder(threading.get_ident(), record.headers)
    try:
        with open(path, "rb", buffering=0) as file:
            for group, numbers in groupby(wanted, lambda number: number // GROUP):
                begin, end = record.offsets[group : group + 2].tolist()
                file.seek(begin)
                data = file.read(end - begin)
                if len(data) < end - begin:
                    raise UnreadableVideoError("cannot be decoded: the file has become shorter")
                for number, frame in _decode_group(decoder, data, {n % GROUP for n in numbers}):
                    yield group * GROUP + number, frame
    except BaseException:
        _decoder.cache_clear()  # the decoder may have stopped in the middle of a group
        raise


def _decode_group(
    decoder: VideoCodecContext, data: bytes, wanted: set[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode the wanted pictures of one group, and only those that they depend on."""
    pictures = split_group(data)
    last = max((order for order, p in enumerate(pictures) if p.number in wanted), default=-1)
    packets = list[Any]()
    for picture in pictures[: last + 1]:
        if picture.is_reference or picture.number in wanted:
            packet = av.Packet(data[picture.start : picture.stop])
            packet.pts = picture.number
            packets.append(packet)
    for each in [*packets, None]:
        for frame in decoder.decode(each):
            if frame.pts in wanted:
                yield int(frame.pts), frame
    decoder.flush_buffers()


@lru_cache(maxsize=32)
def _decoder(thread: int, headers: bytes) -> VideoCodecContext:
    """Return the decoder of a thread for the given parameters.

    The decoder is cached because creating it costs as much as decoding three pictures.
    """
    decoder = av.CodecContext.create("h264", "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.extradata = headers
    decoder.thread_count = 1
    return decoder
