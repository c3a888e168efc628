"""Read the frames of a clip from a video file with PyAV."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multigrid import ClipPlan, Video

__all__ = ["ClipReader", "UnreadableVideoError"]

_FURTHER_BACK = 2.0
"""Seconds; more than the key frames of an MPEG program stream are apart."""


class UnreadableVideoError(ValueError):
    """A video that is missing, or that gives no frames."""


class ClipReader:
    """An open video file: what it is (`video`) and its clips (`read`).

    Frames are counted as they are shown; frame n is the one on the screen at n / fps. Decoding
    starts at the key frame before the first wanted frame and ends at the last.

    Raises:
        UnreadableVideoError: the file cannot be opened or holds no video; the message says why.
    """

    def __init__(self, path: str, *, threads: int = 1) -> None:
        self.path = path
        try:
            self._container: InputContainer = av.open(path)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise UnreadableVideoError(f"cannot be opened: {error}") from error
        if not self._container.streams.video:
            self.close()
            raise UnreadableVideoError("has no video stream")
        self._stream: VideoStream = self._container.streams.video[0]
        self._stream.codec_context.thread_count = threads
        self._reformatter = VideoReformatter()
        with self._errors():
            self.video = self._describe()

    def __enter__(self) -> ClipReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._container.close()

    def read(self, plan: ClipPlan) -> NDArray[np.uint8]:
        """The planned clip, (T, crop, crop, 3) uint8 RGB, not yet flipped.

        A video that ends early repeats its last frame.

        Raises:
            UnreadableVideoError: no frame could be decoded.
        """
        x, y = plan.corner
        clip = np.empty((len(plan.positions), plan.crop, plan.crop, 3), np.uint8)
        with self._errors():
            for row, frame in zip(clip, self._frames(plan.positions), strict=True):
                width, height = plan.size
                # One thread: a pool for each small frame costs several times the conversion.
                image = self._reformatter.reformat(
                    frame, width, height, "rgb24", interpolation=Interpolation.BILINEAR, threads=1
                ).to_ndarray()
                row[:] = image[y : y + plan.crop, x : x + plan.crop]
        return clip

    def _describe(self) -> Video:
        stream = self._stream
        rate = stream.average_rate or stream.guessed_rate
        if not rate or not stream.width or not stream.height:
            raise UnreadableVideoError("does not say its frame rate or size")
        frames = stream.frames or self._count_packets()
        if frames < 1:
            raise UnreadableVideoError("has no frames")
        return Video(frames, float(rate), stream.width, stream.height)

    def _count_packets(self) -> int:
        """Frames of a container whose header does not say, without decoding them."""
        count = sum(packet.size > 0 for packet in self._container.demux(self._stream))
        self._container.seek(0)
        return count

    def _frames(self, positions: NDArray[np.int64]) -> Iterator[VideoFrame]:
        """A frame for each of the ascending positions."""
        decoded = self._decode_from(int(positions[0]))
        frame = next(decoded, None)
        if frame is None:
            raise UnreadableVideoError("has no frame that decodes")
        following = next(decoded, None)
        for position in positions:
            while following is not None and following[0] <= position:
                frame, following = following, next(decoded, None)
            yield frame[1]

    def _decode_from(self, position: int) -> Iterator[tuple[int, VideoFrame]]:
        """(index, frame) from the key frame before `position` on, in the order of showing.

        A container without an index (MPEG program streams) may land beyond what it was asked for;
        then decoding starts further back, at last at the beginning.
        """
        for target in (position, position - round(_FURTHER_BACK * self.video.fps), 0):
            self._seek(target)
            decoded = self._decode()
            first = next(decoded, None)
            if target <= 0 or (first is not None and first[0] <= position):
                break
        if first is not None:
            yield first
        yield from decoded

    def _seek(self, position: int) -> None:
        """Go to the key frame before a frame; to the beginning for 0 and less."""
        start = self._stream.start_time or 0
        offset = start + round(position * self._ticks) if position > 0 else min(start, 0)
        with contextlib.suppress(av.FFmpegError):  # not seekable: decode from the start
            self._container.seek(offset, stream=self._stream)

    def _decode(self) -> Iterator[tuple[int, VideoFrame]]:
        """(index, frame) from where the container stands to its end."""
        start, index = self._stream.start_time or 0, -1
        for frame in self._container.decode(self._stream):
            index = index + 1 if frame.pts is None else round((frame.pts - start) / self._ticks)
            yield index, frame

    @property
    def _ticks(self) -> float:
        """Time of a frame in units of the stream's clock."""
        assert self._stream.time_base is not None
        return 1 / (float(self._stream.time_base) * self.video.fps)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what PyAV raises into one error, and leave no file open."""
        try:
            yield
        except UnreadableVideoError:
            self.close()
            raise
        except (av.FFmpegError, OSError, ValueError) as error:
            self.close()
            raise UnreadableVideoError(f"cannot be decoded: {error}") from error
