"""Read damaged videos, one case a line: `fuzz_worker.py FOLDER FIRST COUNT`.

A process of its own, since what is looked for are crashes and hangs. FOLDER holds whole videos;
each case damages one of them in a way that its number decides.
"""

import os
import sys
from pathlib import Path

import numpy as np

from multigrid import Shape, make_grid, plan_train
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError, VideoRecord

FRAMES, CROP = 4, 32


def flip(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    for place in rng.integers(0, len(data), rng.integers(1, 200)):
        data[place] ^= int(rng.integers(1, 256))
    return data


def truncate(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    return data[: rng.integers(0, len(data))]


def swap_head(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    length = int(rng.integers(4, 2000))
    return bytearray(other[:length]) + data[length:]


def swap_tail(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    length = int(rng.integers(4, 2000))
    return data[:-length] + bytearray(other[-length:])


def blank(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    start = int(rng.integers(0, len(data)))
    data[start : start + 500] = bytes(len(data[start : start + 500]))
    return data


def insert(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    place = int(rng.integers(0, len(data)))
    return data[:place] + bytearray(rng.bytes(rng.integers(1, 300))) + data[place:]


def number(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    """Extreme numbers in the first or last bytes, where headers are."""
    place = int(rng.integers(0, min(2000, len(data) - 4))) * int(rng.choice([-1, 1]))
    data[place : place + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)])
    return data


def noise(data: bytearray, other: bytes, rng: np.random.Generator) -> bytearray:
    return bytearray(rng.bytes(rng.integers(0, 3000)))


DAMAGES = (flip, truncate, swap_head, swap_tail, blank, insert, number, noise)


def attempt(path: Path, record: VideoRecord | None, rng: np.random.Generator) -> str:
    """Read a clip with what `scan` says now, or with what it said when the file was whole."""
    message = None
    try:
        record = scan(str(path)) if record is None else record
        base = Shape(1, FRAMES, CROP)
        plan = plan_train(rng, make_grid(base, base, 4, (CROP, 2 * CROP)), record.video)
        clip = read_clip(str(path), record, plan)
    except UnreadableVideoError as error:
        message = str(error)
    if message is not None:
        assert message, "an error without a message"
        assert "\n" not in message, message
        return "error"
    assert clip.shape == (FRAMES, CROP, CROP, 3), clip.shape
    assert clip.dtype == np.uint8
    return "clip"


def main(folder: Path, first: int, count: int) -> None:
    whole = sorted(path for path in folder.iterdir() if not path.name.startswith("damaged"))
    content = [path.read_bytes() for path in whole]
    records = [scan(str(path)) for path in whole]
    for case in range(first, first + count):
        rng = np.random.default_rng(case)
        which, other = (int(n) for n in rng.integers(0, len(whole), 2))
        damage = DAMAGES[case % len(DAMAGES)]
        path = folder / f"damaged{os.getpid()}{whole[which].suffix}"
        path.write_bytes(damage(bytearray(content[which]), content[other], rng))
        outcomes = [attempt(path, record, rng) for record in (None, records[which])]
        path.unlink()
        print(case, damage.__name__, whole[which].name, *outcomes, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
