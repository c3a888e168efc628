"""The prepared form of a video: what it looks like, and how a clip is decoded from it.

An mp4 file with one H.264 stream of closed groups of GROUP pictures. Every group is a unit of its
own: a key frame, an anchor (P) every ANCHOR pictures and at the end, and between anchors pictures
that no other refers to (b):

    decoded     I  P12  b1 b2 ... b11  P24  b13 ... b23  P36 ...  P47  b37 ... b46
    a clip of   frames 5 and 20:   I  P12  b5  P24  b20      5 of 48 pictures are decoded

Such a file plays everywhere, and any reader can seek in it. Ours reads the groups it wants with one
call each, without opening the file as a container: the index keeps where the groups begin, the
units' headers say the rest (ITU-T H.264, 7.3.1: nal_ref_idc and nal_unit_type).

Entropy coding is CAVLC and nothing is deblocked: decoding costs half of what it costs with CABAC.
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

from slowfast_patches.datasets.reading.files import check_regular
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError, VideoRecord

__all__ = ["ANCHOR", "GROUP", "TAG", "Picture", "decode_prepared", "split_group"]

GROUP = 48
"""Pictures in a group; the last group of a video may have fewer."""
ANCHOR = 12
"""Pictures from one anchor to the next."""
TAG = f"multigrid-1 group={GROUP}"
"""The file's comment, by which `scan` knows it."""

_PICTURES = (1, 5)  # nal_unit_type: slice of a picture, slice of an IDR picture
_LENGTH = 4
"""Bytes that give the length of each unit (avcC: lengthSizeMinusOne 3, what every muxer writes)."""


class Picture(NamedTuple):
    """One coded picture of a group: its number in the order shown, whether others refer to it, and
    where its bytes lie."""

    number: int
    is_reference: bool
    start: int
    stop: int


def split_group(data: bytes) -> list[Picture]:
    """The pictures of a group in the order of decoding.

    Raises:
        UnreadableVideoError: the bytes are no such group.
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
    # As they are shown, the pictures that follow an anchor come before it.
    following = dict(pairwise([*anchors, len(units)]))
    return [Picture(following.get(order, order) - 1, *unit) for order, unit in enumerate(units)]


def decode_prepared(
    path: str, record: VideoRecord, wanted: list[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """(number, frame) of each of the wanted frames, which ascend, in a prepared file.

    Raises:
        UnreadableVideoError: the file is not what the index says.
    """
    assert record.offsets is not None
    check_regular(path)  # it may have become a pipe, which would be waited for
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
        _decoder.cache_clear()  # it may be left in the middle of a group
        raise


def _decode_group(
    decoder: VideoCodecContext, data: bytes, wanted: set[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """The wanted pictures of one group, and what they depend on, no more."""
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
    """A thread's decoder for these parameters: making one and its frames costs as much as three
    pictures."""
    decoder = av.CodecContext.create("h264", "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.extradata = headers
    decoder.thread_count = 1
    return decoder
