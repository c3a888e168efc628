"""Decode the frames of a clip from a prepared video, and define what a prepared video is.

A prepared video is an mp4 file with one H.264 stream. The stream consists of closed groups of GROUP
pictures, and each group can be decoded without the others. A group has a key frame (I), and an
anchor (P) at every ANCHOR-th picture and at the last picture. All other pictures (b) lie between
anchors and are not used as references. Within a group, the order in the stream is:

    I  P12  b1 b2 ... b11  P24  b13 ... b23  P36 ...  P47  b37 ... b46

For a clip of the frames 5 and 20, the reader decodes only 5 of the 48 pictures: I P12 b5 P24 b20.

Prepared videos are ordinary mp4 files, which every player can play. This module is faster than a
general reader because it does not open the file as a container. The index stores the byte offsets
of the groups, so each group is read with a single call, and a clip in a bucket with a single
request. The headers of the H.264 units (ITU-T H.264, 7.3.1: nal_ref_idc and nal_unit_type) tell
where the pictures begin and which are references.

The stream uses CAVLC entropy coding and no deblocking, which halves the cost of decoding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import av
import numpy as np
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.damage import warn_of_damage
from slowfast_patches.datasets.reading.h264 import field_test
from slowfast_patches.datasets.reading.scanned_video import Ints, ScannedVideo
from slowfast_patches.datasets.reading.video_file import (
    ErrorLog,
    UnreadableVideoError,
    check_regular,
)
from slowfast_patches.utils.storage import is_remote, read_range

GROUP = 48
"""Number of pictures in a group. The last group of a video may have fewer."""
ANCHOR = 12
"""Number of pictures from one anchor to the next."""
TAG = f"multigrid-1 group={GROUP}"
"""Value of the metadata field `comment` of prepared files. Other programs copy it to the files that
they make from a prepared file, so `scan` also checks the content (`group_offsets`)."""

_PICTURES = (1, 5)  # nal_unit_type: slice of a picture, slice of an IDR picture
_LENGTH = 4
"""Size in bytes of the length field of each H.264 unit. Every muxer writes 4 bytes."""


class Picture(NamedTuple):
    """Coded picture of a group.

    Attributes:
        number: Index of the picture in the group, in display order.
        is_reference: Whether other pictures use this picture as a reference.
        start: Byte offset in the group at which the picture begins.
        stop: Byte offset in the group at which the picture ends.
    """

    number: int
    is_reference: bool
    start: int
    stop: int


def split_group(data: bytes) -> list[Picture]:
    """Split the bytes of a group into pictures, in decoding order.

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
    # The pictures that follow an anchor in the stream are displayed before it.
    following = dict(pairwise([*anchors, len(units)]))
    return [Picture(following.get(order, order) - 1, *unit) for order, unit in enumerate(units)]


def group_offsets(stream: VideoStream, packets: Sequence[Packet[VideoStream]]) -> Ints | None:
    """Return `ScannedVideo.offsets`, or None if the packets are not in the prepared form.

    The metadata of a file prove nothing, because other programs copy them. So check the content:
    each group begins with a key frame, each packet holds one picture and follows the previous
    packet in the file, and pictures are displayed in the order that `split_group` assumes.
    """
    keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    if not packets or keys != list(range(0, len(packets), GROUP)):
        return None
    header = stream.codec_context.extradata or b""
    has_lengths = len(header) > 4 and header[0] == 1 and header[4] & 3 == _LENGTH - 1
    places = [packet.pos or 0 for packet in packets]
    ends = [place + packet.size for place, packet in zip(places, packets, strict=True)]
    if not has_lengths or field_test(stream) is not None or places[1:] != ends[:-1]:
        return None
    times = [packet.pts for packet in packets if packet.pts is not None]
    shown = {time: number for number, time in enumerate(sorted(times))}
    if len(shown) != len(packets):
        return None
    for start in keys:
        group = packets[start : start + GROUP]
        try:
            pictures = split_group(b"".join(map(bytes, group)))
        except UnreadableVideoError:
            return None
        sizes = [picture.stop - picture.start for picture in pictures]
        numbers = [shown[time] - start for time in times[start : start + GROUP]]
        if sizes != [packet.size for packet in group]:
            return None
        if [picture.number for picture in pictures] != numbers:
            return None
    return np.array([*(places[number] for number in keys), ends[-1]], np.int64)


def decode_prepared(
    path: str, scanned: ScannedVideo, wanted: list[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (number, frame) for each wanted frame of a prepared file.

    Args:
        path: The prepared file.
        scanned: The scanned file.
        wanted: The frame indices in ascending order.

    Raises:
        UnreadableVideoError: The file does not match the index.
    """
    assert scanned.offsets is not None
    check_regular(path)  # reading from a pipe could block forever
    decoder = _decoder(threading.get_ident(), scanned.headers)
    log = ErrorLog()
    try:
        for group, data in _read_groups(path, scanned.offsets, wanted):
            numbers = {number % GROUP for number in wanted if number // GROUP == group}
            for number, frame in _decode_group(decoder, data, numbers):
                if frame.is_corrupt:
                    warn_of_damage(path, f"frame {group * GROUP + number} is damaged")
                yield group * GROUP + number, frame
            if error := log.new():
                warn_of_damage(path, f"FFmpeg reports {error!r}")
    except BaseException:
        _decoder.cache_clear()  # the decoder may have stopped in the middle of a group
        raise


def _read_groups(path: str, offsets: Ints, wanted: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (index, bytes) of each group that contains a wanted frame.

    From a remote file, read all groups from the first to the last with one request. A request takes
    as long as the transfer of about 1 MB, which is many groups.
    """
    groups = sorted({number // GROUP for number in wanted})
    for run in [groups] if is_remote(path) else [[group] for group in groups]:
        begin, end = int(offsets[run[0]]), int(offsets[run[-1] + 1])
        data = read_range(path, begin, end)
        if len(data) < end - begin:
            raise UnreadableVideoError("cannot be decoded: the file has become shorter")
        for group in run:
            yield group, data[offsets[group] - begin : offsets[group + 1] - begin]


def _decode_group(
    decoder: VideoCodecContext, data: bytes, wanted: set[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode the wanted pictures of one group, and yield each as (index in the group, frame).

    Other pictures are decoded only if the wanted pictures depend on them.
    """
    pictures = split_group(data)
    last = max((order for order, p in enumerate(pictures) if p.number in wanted), default=-1)
    packets = list[Any]()
    for picture in pictures[: last + 1]:
        if picture.is_reference or picture.number in wanted:
            packet = av.Packet(data[picture.start : picture.stop])
            packet.pts = picture.number
            packets.append(packet)
    for packet in [*packets, None]:
        for frame in decoder.decode(packet):
            if frame.pts in wanted:
                yield int(frame.pts), frame
    decoder.flush_buffers()


@lru_cache(maxsize=32)
def _decoder(thread: int, headers: bytes) -> VideoCodecContext:
    """Return the cached decoder of a thread for the given decoder parameters (avcC).

    Creating a decoder takes as long as decoding three pictures.
    """
    decoder = av.CodecContext.create("h264", "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.extradata = headers
    decoder.thread_count = 1
    return decoder
