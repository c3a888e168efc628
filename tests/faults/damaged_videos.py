"""Compare clips of damaged videos with a decode from the beginning.

    python tests/faults/damaged_videos.py --files 500 --seed 7

Each case writes a video in one of many codecs and containers, damages it at random, and reads clips
at random indices. A case is wrong if nothing was said about the video and one of these holds:

- A clip differs from a decode of the file from the beginning.
- FFmpeg reports errors, and a clip differs from the undamaged video.

The seed determines all cases. Without a seed, each run has new ones.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import damage, decoding
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import _LENIENT, ErrorLog, UnreadableVideoError
from tests.slowfast_patches.datasets.public_reports.numbered import FRAMES, SIDE, noisy, write

Images = list[NDArray[np.uint8]]

TOLERANCE = 3.0
"""Mean difference in levels. swscale and the reader interpolate chroma differently."""
CLIPS = 4
"""Number of random clips of each video. Afterwards, all frames are read in one pass."""
LIVE = {"live": "1"}
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
QUIET = {"x265-params": "log-level=none"}
OPEN = {"x264-params": "open-gop=1:bframes=3:b-pyramid=normal:keyint=10:scenecut=0"}


class Kind(NamedTuple):
    """How a video is written."""

    suffix: str
    codec: str = "libx264"
    pixels: str = "yuv420p"
    options: dict[str, str] | None = None
    container: dict[str, str] | None = None
    side: int = SIDE


KINDS = {
    "prepared": Kind(".mp4"),
    "H.264 mp4": Kind(".mp4"),
    "open groups": Kind(".mp4", options=OPEN),
    "fragments": Kind(".mp4", container=FRAGMENTS),
    "H.264 mkv": Kind(".mkv", options=OPEN),
    "live mkv": Kind(".mkv", container=LIVE),
    "H.264 avi": Kind(".avi", "libx264"),
    "H.264 flv": Kind(".flv", "libx264"),
    "H.264 ts": Kind(".ts"),
    "H.264": Kind(".h264"),
    "HEVC mp4": Kind(".mp4", "libx265", options=QUIET),
    "HEVC mkv": Kind(".mkv", "libx265", options=QUIET),
    "HEVC": Kind(".hevc", "libx265", options=QUIET),
    "AV1": Kind(".mp4", "libsvtav1"),
    "VP8": Kind(".webm", "libvpx"),
    "live VP8": Kind(".webm", "libvpx", container=LIVE),
    "VP9": Kind(".webm", "libvpx-vp9"),
    "Ogg": Kind(".ogv", "libvpx"),
    "IVF": Kind(".ivf", "libvpx"),
    "MPEG-4 avi": Kind(".avi", "mpeg4", options={"bf": "2"}),
    "MPEG-4 mp4": Kind(".mp4", "mpeg4"),
    "MPEG-4 nut": Kind(".nut", "mpeg4", options={"bf": "2"}),
    "MPEG-2 mpg": Kind(".mpg", "mpeg2video", options={"bf": "2"}),
    "MPEG-2 ts": Kind(".ts", "mpeg2video", options={"bf": "2"}),
    "MPEG-2 mkv": Kind(".mkv", "mpeg2video", options={"bf": "2"}),
    "MPEG-2": Kind(".m2v", "mpeg2video"),
    "MPEG-1": Kind(".mpg", "mpeg1video"),
    "H.263": Kind(".3gp", "h263", side=176),
    "Sorenson": Kind(".flv", "flv"),
    "WMV": Kind(".wmv", "wmv2"),
    "MS MPEG-4": Kind(".avi", "msmpeg4v3"),
    "FFV1": Kind(".mkv", "ffv1"),
    "QuickTime RLE": Kind(".mov", "qtrle", "rgb24"),
    "ZMBV": Kind(".avi", "zmbv", "bgr0"),
    "Flash screen": Kind(".flv", "flashsv", "bgr24"),
    "Cinepak": Kind(".mov", "cinepak", "rgb24"),
    "Huffyuv": Kind(".avi", "huffyuv", "yuv422p"),
    "PNG": Kind(".mov", "png", "rgb24"),
    "ProRes": Kind(".mov", "prores_ks", "yuv422p10le"),
    "MJPEG mov": Kind(".mov", "mjpeg", "yuvj420p"),
    "MJPEG": Kind(".mjpeg", "mjpeg", "yuvj420p"),
    "GIF": Kind(".gif", "gif", "rgb8"),
    "Y4M": Kind(".y4m", "wrapped_avframe"),
}


def flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 5, 60))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def overwrite(data: bytearray, rng: random.Random) -> None:
    """Replace a range of bytes by zeros, or by random bytes of another number."""
    start, size = rng.randrange(len(data)), rng.randrange(1, 500)
    new = bytes(size) if rng.random() < 0.5 else rng.randbytes(rng.randrange(300))
    data[start : start + size] = new


def leave(data: bytearray, rng: random.Random) -> None:
    """Change nothing."""


DAMAGES = (flip_bits, flip_bits, truncate, overwrite, leave)


class ReadResult(NamedTuple):
    """What became of a case: a word for the table, and a description if the case is wrong."""

    word: str
    wrong: str = ""


def run_case(seed: int, folder: Path) -> ReadResult:
    """Write, damage and read a video. The seed of the case determines everything."""
    rng = random.Random(seed)
    name = rng.choice(list(KINDS))
    source, images = whole_video(name, folder)
    data = bytearray(source.read_bytes())
    how = rng.choice(DAMAGES)
    how(data, rng)
    path = folder / f"case{source.suffix}"
    path.write_bytes(data)
    damage._warned.clear()
    decoding._unreliable.clear()
    small = rng.random() < 0.5
    before, scanning.FULLY_DECODED = scanning.FULLY_DECODED, scanning.FULLY_DECODED * small
    try:
        outcome = compare(path, images, rng)
    except UnreadableVideoError:
        outcome = ReadResult("unreadable")
    finally:
        scanning.FULLY_DECODED = before
    if how is leave and outcome.word != "right":
        return ReadResult(outcome.word, f"{name}: a whole file is {outcome.word}: {outcome.wrong}")
    return outcome._replace(wrong=outcome.wrong and f"{name}, {how.__name__}: {outcome.wrong}")


def compare(path: Path, images: Images, rng: random.Random) -> ReadResult:
    """Read random clips of a video, and compare them with a whole decode and with `images`."""
    record = scan(str(path))
    frames = record.video.frames
    indices = [sorted(rng.choices(range(frames), k=rng.randrange(1, 8))) for _ in range(CLIPS)]
    shown = list[tuple[int, NDArray[np.uint8]]]()
    for wanted in [*indices, list(range(frames))]:
        side = min(record.video.width, record.video.height)
        size = (record.video.width, record.video.height)
        plan = ClipPlan(np.array(wanted), size, (0, 0), side, False)
        shown += zip(wanted, read_clip(str(path), record, plan), strict=True)
    if record.damage or record.timing or damage._warned:
        return ReadResult("named")
    log = ErrorLog()
    decoded = decode(path)
    if len(decoded) != frames:
        return ReadResult("wrong", f"{frames} frames, but {len(decoded)} decode")
    if other := [number for number, image in shown if differ(image, decoded[number])]:
        return ReadResult("wrong", f"frame {other[0]} is not that of a whole decode")
    changed = len(images) != frames or any(differ(i, images[number]) for number, i in shown)
    if changed and (error := log.new()):
        return ReadResult("wrong", f"nothing was said, but FFmpeg reports {error}")
    return ReadResult("changed unnoticed" if changed else "right")


@cache
def whole_video(name: str, folder: Path) -> tuple[Path, Images]:
    """Write an undamaged video, and decode it."""
    kind = KINDS[name]
    path = folder / f"whole{list(KINDS).index(name)}{kind.suffix}"
    side = (kind.side, kind.side * 9 // 11 if kind.side != SIDE else SIDE)
    pictures = [cv2.resize(noisy(number), side) for number in range(FRAMES)]
    how: dict[str, Any] = {"options": kind.options, "container_options": kind.container}
    write(path, kind.codec, kind.pixels, images=pictures, **how)
    if name == "prepared":
        source = path.rename(folder / "source.mp4")
        write_prepared(str(source), scan(str(source)), path)
    return path, decode(path)


def decode(path: Path) -> Images:
    """Decode a video from the beginning, and skip packets that do not decode."""
    images: Images = []
    with av.open(str(path), **_LENIENT) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for packet in _packets(container):
            try:
                frames = stream.codec_context.decode(packet)
            except av.FFmpegError:
                continue
            images += [frame.to_ndarray(format="rgb24") for frame in frames]
    return images


def _packets(container: Any) -> Iterator[Any]:
    packets = container.demux(video=0)
    try:
        yield from packets
    except (av.FFmpegError, IndexError):
        yield from chain([None])


def differ(image: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Return whether a square clip differs from the same part of a frame."""
    side = len(image)
    if min(other.shape[:2]) < side:
        return True
    return bool(np.abs(image.astype(int) - other[:side, :side]).mean() > TOLERANCE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=500, help="number of damaged files")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    cv2.setNumThreads(0)
    print(f"seed {arguments.seed}")
    words = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.files):
            outcome = run_case(seed, Path(folder))
            words[outcome.word] += 1
            if outcome.wrong:
                print(f"case {seed}: {outcome.wrong}", flush=True)
    print(dict(words))


if __name__ == "__main__":
    main()
