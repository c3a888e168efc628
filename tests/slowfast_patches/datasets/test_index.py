"""The index: what it keeps, what it scans anew, and what happens to it."""

import dataclasses
import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import Video
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import index as index_module
from slowfast_patches.datasets.reading import index_file as file_module
from slowfast_patches.datasets.reading import scan_all as scanning
from slowfast_patches.datasets.reading.index import VideoIndex, open_index
from slowfast_patches.datasets.reading.index_file import index_files, load_table, save_table
from slowfast_patches.datasets.reading.index_table import Entry, Table
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord


def write_video(path: Path, stamps: list[int] | None = None, *, frames: int = 12) -> Path:
    """A small video; `stamps` says when each frame is shown, in 1/30 s."""
    stamps = list(range(frames)) if stamps is None else stamps
    with av.open(str(path), "w") as container:
        codec = "mpeg4" if path.suffix == ".avi" else "libx264"
        stream = container.add_stream(codec, rate=30)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 5
        for number, shown in enumerate(stamps):
            image = np.full((48, 64, 3), 9 * number % 256, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = shown, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_folder(path: Path, files: int = 3) -> Path:
    path.mkdir()
    for number in range(files):
        add_jpeg(path, number)
    return path


def add_jpeg(folder: Path, number: int) -> None:
    assert cv2.imwrite(str(folder / f"{number:04}.jpg"), np.full((20, 30, 3), 99, np.uint8))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One video of each kind."""
    folder = tmp_path_factory.mktemp("made")
    write_video(folder / "even.mp4")
    write_video(folder / "rounded.mkv")
    write_video(folder / "uneven.mp4", [0, 1, 5, 6, 30, 31])
    write_video(folder / "counting.avi")
    write_video(folder / "bare.h264")
    source = str(folder / "even.mp4")
    write_prepared(source, scan(source), folder / "prepared.mp4")
    write_prepared(source, scan(source), folder / "smaller.mp4", short_side=32)
    write_folder(folder / "frames")
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A data set of its own, with a csv."""
    folder = tmp_path / "data"
    shutil.copytree(made, folder)
    (folder / "train.csv").write_text("its content does not matter here")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "multigrid"


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is scanned, as it happens."""
    names = list[str]()

    def spy(path: str, _: int) -> VideoRecord:
        names.append(Path(path).name)
        return scan(path)

    monkeypatch.setattr(scanning, "scan", spy)
    return names


def videos(folder: Path) -> list[str]:
    return sorted(str(p) for p in folder.iterdir() if p.suffix not in (".csv", ".npz", ".txt"))


def opened(folder: Path, paths: list[str] | None = None, **options: int) -> VideoIndex:
    return open_index(folder / "train.csv", videos(folder) if paths is None else paths, **options)


def assert_same(found: VideoRecord, expected: VideoRecord) -> None:
    for field in dataclasses.fields(VideoRecord):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, np.ndarray):
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
            assert ours.dtype == theirs.dtype == np.int64
        else:
            assert ours == theirs, field.name
            assert type(ours) is type(theirs), field.name


def assert_right(index: VideoIndex, paths: list[str]) -> None:
    """The records are what scanning gives, in the order of the list."""
    assert len(index) == len(paths)
    for number, path in enumerate(paths):
        assert_same(index.record(number), scan(path))


# What is kept.


def test_the_records_are_what_scanning_finds_now_and_when_loaded(data, scanned):
    paths = videos(data)
    assert_right(opened(data), paths)
    assert len(scanned) == len(paths)
    loaded = opened(data)
    assert len(scanned) == len(paths), "nothing has changed"
    assert_right(loaded, paths)
    assert loaded.unreadable == []
    kinds = [loaded.record(number).kind for number in range(len(paths))]
    assert {*kinds} == {*Kind}


def test_what_is_new_changed_or_gone(data, scanned):
    opened(data)
    scanned.clear()
    write_video(data / "new.mp4", frames=4)
    write_video(data / "even.mp4", frames=7)
    (data / "bare.h264").unlink()
    before = (data / "uneven.mp4").stat()
    os.utime(data / "uneven.mp4", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert_right(opened(data), videos(data))
    assert sorted(scanned) == ["even.mp4", "new.mp4", "uneven.mp4"]
    assert_right(opened(data), videos(data))
    assert len(scanned) == 3


def test_a_folder_changes_with_the_number_of_its_frames(data, scanned):
    opened(data)
    before = (data / "frames").stat()
    add_jpeg(data / "frames", 7)
    os.utime(data / "frames", ns=(before.st_atime_ns, before.st_mtime_ns))
    scanned.clear()
    index = opened(data)
    assert scanned == ["frames"]
    assert index.record(videos(data).index(str(data / "frames"))).video == Video(4, 30.0, 30, 20)


def test_another_order_and_the_same_video_twice(data, scanned):
    paths = videos(data)
    opened(data)
    scanned.clear()
    again = [paths[3], *reversed(paths), paths[3]]
    assert_right(opened(data, again), again)
    assert scanned == []


def test_a_data_set_may_be_moved(data, scanned):
    opened(data)
    scanned.clear()
    moved = data.rename(data.with_name("moved"))
    assert_right(opened(moved), videos(moved))
    assert scanned == []


def test_relative_paths_and_paths_outside_the_folder(data, tmp_path, scanned, monkeypatch):
    outside = str(write_video(tmp_path / "größer als 2 MB.mp4"))
    monkeypatch.chdir(data)
    assert_right(open_index(Path("train.csv"), ["even.mp4", outside]), ["even.mp4", outside])
    scanned.clear()
    monkeypatch.chdir(tmp_path)
    paths = [str(data / "even.mp4"), outside, "data/even.mp4"]
    assert_right(opened(data, paths), paths)
    assert scanned == []


def test_a_set_is_prepared_if_all_that_can_be_read_is(data):
    prepared = [str(data / "prepared.mp4"), str(data / "smaller.mp4")]
    assert opened(data, prepared).is_prepared
    assert opened(data, [*prepared, "missing.mp4"]).is_prepared
    assert not opened(data, [*prepared, str(data / "even.mp4")]).is_prepared
    assert not opened(data, ["missing.mp4"]).is_prepared


def test_an_empty_list_has_an_empty_index(data):
    index = opened(data, [])
    assert (len(index), index.unreadable, index.is_prepared) == (0, [], False)


# Videos that cannot be read.


def test_unreadable_videos_are_reported_and_tried_again(data, scanned, caplog):
    (data / "text.mp4").write_text("no video")
    paths = [*videos(data), str(data / "missing.mp4")]
    listing = data / "train.index.unreadable.txt"
    for _ in range(2):
        caplog.clear()
        index = opened(data, paths)
        bad = dict(index.unreadable)
        assert list(bad) == [str(data / "text.mp4"), str(data / "missing.mp4")]
        with pytest.raises(UnreadableVideoError, match="Invalid data"):
            index.record(paths.index(str(data / "text.mp4")))
        expected = "".join(f"{path}\t{reason}\n" for path, reason in bad.items())
        assert listing.read_text() == expected
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert f"2 of the {len(paths)} videos" in warnings[0]
        assert "text.mp4: cannot be opened: Invalid data" in warnings[0]
        assert str(listing) in warnings[0]
    assert scanned[-2:] == ["text.mp4", "missing.mp4"]
    assert len(scanned) == len(paths) + 2
    write_video(data / "text.mp4")
    write_video(data / "missing.mp4")
    assert_right(opened(data, paths), paths)
    assert not listing.exists()


def test_a_disk_that_is_missing_for_once_costs_no_index(data, scanned):
    index, paths = opened(data), videos(data)
    away = data.rename(data.with_name("away"))
    data.mkdir()
    shutil.copy(away / "train.index.npz", data)
    assert len(opened(data, paths).unreadable) == len(paths)
    for path in paths:
        (away / Path(path).name).rename(path)
    scanned.clear()
    assert_same(opened(data).record(3), index.record(3))
    assert scanned == []


def test_a_fault_of_the_scanner_is_a_reason_and_no_end(data, monkeypatch):
    def scan_badly(path: str, _: int) -> VideoRecord:
        if path.endswith(".avi"):
            raise ZeroDivisionError("oh")
        return scan(path)

    monkeypatch.setattr(scanning, "scan", scan_badly)
    reason = "cannot be scanned: ZeroDivisionError: oh"
    assert opened(data).unreadable == [(str(data / "counting.avi"), reason)]


# The file.


def damage(file: Path, kind: str) -> str:
    """Put something else in the place of an index; what the log shall say of it."""
    if kind == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "text":
        file.write_text("what is this?\n" * 100)
    elif kind == "pickle":
        file.write_bytes(pickle.dumps({"kind": np.zeros(3)}))
    elif kind == "objects":
        np.savez(file, multigrid_index=np.array([{}], object), allow_pickle=True)
    elif kind == "one array":
        with file.open("wb") as stream:
            np.save(stream, np.arange(3))
        return "is something else"
    elif kind == "other npz":
        np.savez(file, weights=np.ones(3))
        return "is something else"
    elif kind == "other version":
        rewrite(file, multigrid_index=np.array([0, 0]))
        return "is of version 0"
    elif kind == "one array changed":
        rewrite(file, frames=np.ones(8, np.int32))
        return "is damaged: its checksum is wrong"
    return "cannot be read"


def rewrite(file: Path, **arrays: np.ndarray) -> None:
    with np.load(file) as content:
        old = dict(content)
    np.savez(file, **{**old, **arrays})


KINDS = ("truncated", "empty", "text", "pickle", "objects", "one array", "other npz")


@pytest.mark.parametrize("kind", [*KINDS, "other version", "one array changed"])
def test_a_file_that_is_no_good_index_is_built_anew(data, scanned, caplog, kind):
    opened(data)
    file = data / "train.index.npz"
    good = load_table(file)
    said = damage(file, kind)
    scanned.clear()
    caplog.clear()
    assert_right(opened(data), videos(data))
    assert len(scanned) == len(videos(data))
    assert f"the index {file} is built anew: it {said}" in caplog.text
    assert np.array_equal(load_table(file).rows, good.rows)


def test_no_flipped_byte_is_believed(data, scanned):
    """What is loaded from a file with a byte changed is the whole truth or nothing of it."""
    opened(data)
    file = data / "train.index.npz"
    content, expected = file.read_bytes(), pickle.dumps(load_table(file))
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), 300, replace=False).tolist():
        changed = bytearray(content)
        changed[place] ^= int(rng.integers(1, 256))
        file.write_bytes(changed)
        try:
            table = load_table(file)
        except ValueError:
            continue
        assert pickle.dumps(table) == expected


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("kind", 7),
        ("frames", 0),
        ("frames", -5),
        ("frames", 3),  # fewer than the key frames and the listed timestamps say
        ("width", 0),
        ("fps", float("nan")),
        ("fps", 0.0),
        ("turns", 4),
        ("clock", 3),
        ("header", 99),
        ("header", -1),
        ("streams", -1),
        ("places", -1),
        ("places_counts", -1),
        ("places_counts", 0),
        ("stamps_counts", 1),
        ("paths_counts", 1 << 30),
        ("paths", 0xFF),
    ],
)
def test_an_index_with_a_right_checksum_is_checked_nevertheless(
    data, monkeypatch, scanned, array, value
):
    opened(data)
    file = data / "train.index.npz"
    to_arrays = file_module._to_arrays

    def forged(table: Table) -> dict[str, np.ndarray]:
        arrays = to_arrays(table)
        arrays[array] = np.full_like(arrays[array], value)
        return arrays

    with monkeypatch.context() as patch:
        patch.setattr(file_module, "_to_arrays", forged)
        save_table(load_table(file), file)
    with pytest.raises(ValueError, match=r"makes no sense|Unicode"):
        load_table(file)
    scanned.clear()
    assert_right(opened(data), videos(data))
    assert len(scanned) == len(videos(data))


@pytest.mark.parametrize("missing", ["fps", "paths", "paths_counts"])
def test_an_index_without_one_of_its_arrays_is_refused(data, monkeypatch, missing):
    opened(data)
    file = data / "train.index.npz"
    table, to_arrays = load_table(file), file_module._to_arrays

    def forged(table: Table) -> dict[str, np.ndarray]:
        return {name: array for name, array in to_arrays(table).items() if name != missing}

    monkeypatch.setattr(file_module, "_to_arrays", forged)
    save_table(table, file)
    with pytest.raises(ValueError, match=missing):
        load_table(file)


def test_where_the_folder_is_not_writable_the_index_lies_in_the_cache(data, cache, scanned, caplog):
    (data / "train.index.npz").mkdir()  # what even the superuser cannot overwrite
    assert_right(opened(data), videos(data))
    (file,) = cache.iterdir()
    assert file == index_files(data / "train.csv")[1]
    scanned.clear()
    with caplog.at_level(logging.INFO):
        assert_right(opened(data), videos(data))
    assert scanned == []
    assert f"it is in {file}" in caplog.text


def test_an_old_index_beside_the_csv_is_completed_by_the_one_in_the_cache(data, cache, scanned):
    paths = videos(data)
    opened(data, paths[:3])
    old = (data / "train.index.npz").read_bytes()
    (data / "train.index.npz").unlink()
    (data / "train.index.npz").mkdir()
    opened(data, paths[2:])
    (data / "train.index.npz").rmdir()
    (data / "train.index.npz").write_bytes(old)
    scanned.clear()
    assert_right(opened(data), paths)
    assert scanned == []


def test_an_index_that_can_be_kept_nowhere_is_used_all_the_same(data, cache, caplog, monkeypatch):
    (data / "train.index.npz").mkdir()
    cache.parent.write_text("a file where a folder should be")
    assert_right(opened(data), videos(data))
    assert "can be kept nowhere" in caplog.text


def test_nothing_is_left_beside_the_index(data):
    (data / "bad.mp4").touch()
    before = {path.name for path in data.iterdir()}
    opened(data)
    after = {path.name for path in data.iterdir()}
    assert after - before == {"train.index.npz", "train.index.unreadable.txt"}


def records(count: int, frames: int, rng: np.random.Generator) -> list[VideoRecord]:
    """Of mp4 files of 30 frames a second, with a few key frames at random."""
    stamps = np.arange(frames) * 512
    keys = [np.union1d([0], rng.choice(frames, 4)) for _ in range(count)]
    video = Video(frames, 30.0, 340, 256)
    return [VideoRecord(Kind.VIDEO, video, 0, stamps, k, streams=2) for k in keys]


def test_a_video_of_constant_rate_takes_less_than_100_bytes(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"train/{rng.bytes(8).hex()}_000010_000020.mp4" for _ in range(2000)]
    status = rng.integers([100_000, 10**18], [2_000_000, 10**18 + 10**16], (2000, 2))
    entries = [Entry.of(record) for record in records(2000, 300, rng)]
    file = tmp_path / "a.index.npz"
    save_table(Table.of(names, status, entries), file)
    # 16 bytes of a name, 6 of a time and 3 of a size cannot be compressed here.
    assert 25 < file.stat().st_size / 2000 < 60


def test_an_unchanged_index_of_10000_videos_opens_within_a_second(tmp_path, monkeypatch):
    paths = [str(tmp_path / f"{number:05}.mp4") for number in range(10_000)]
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    monkeypatch.setattr(scanning, "_scan", lambda job: Entry.of(record))
    monkeypatch.setattr(scanning, "FEW", len(paths) + 1)
    (record,) = records(1, 300, np.random.default_rng(0))
    opened(tmp_path, paths)
    monkeypatch.delattr(scanning, "_scan")
    seconds = list[float]()
    for _ in range(2):
        start = time.process_time()
        index = opened(tmp_path, paths)
        seconds.append(time.process_time() - start)
    assert_same(index.record(9_999), record)
    assert min(seconds) < 1


# Timestamps.

AT_START = st.integers(-(2**40), 2**40)


def kept(timestamps: list[int]) -> Table:
    """A table of a video with these timestamps."""
    video = Video(len(timestamps), 30.0, 4, 4)
    keys = np.array([0])
    record = VideoRecord(Kind.VIDEO, video, 0, np.array(timestamps, np.int64), keys)
    table = Table.of(["a"], np.zeros((1, 2), np.int64), [Entry.of(record)])
    assert_same(table.record(0), record)
    return table


@settings(max_examples=60, deadline=None)
@given(
    frames=st.integers(1, 3000),
    fps=st.sampled_from([Fraction(30), Fraction(25), Fraction(24000, 1001), Fraction(60000, 1001)])
    | st.fractions(1, 240, max_denominator=2000),
    unit=st.sampled_from([1000, 600, 12800, 90_000, 1_000_000]),
    shift=st.fractions(0, 1, max_denominator=50),
    start=AT_START,
)
def test_an_even_rate_in_any_unit_takes_no_list(frames, fps, unit, shift, start):
    timestamps = [start + int(number * unit / fps + shift) for number in range(frames)]
    assert len(kept(timestamps).stamps.values) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_any_timestamps_are_kept(timestamps):
    kept(timestamps)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), AT_START)
def test_timestamps_that_are_nearly_even_are_kept(steps, start):
    kept([start, *(start + np.cumsum(steps)).tolist()])


def test_timestamps_out_of_order_are_kept_in_32_bits():
    assert kept([1, 2, 4, 3, 5, 6, 10**9]).stamps.values.dtype == np.int32
    assert kept([1, 2, 10**10, 3]).stamps.values.dtype == np.int64


# Interruptions, and several processes.


def interrupt_at(count: int) -> Callable[[str, int], VideoRecord]:
    calls = list[str]()

    def interrupted(path: str, _: int) -> VideoRecord:
        calls.append(path)
        if len(calls) > count:
            raise KeyboardInterrupt
        return scan(path)

    return interrupted


def test_a_building_that_was_interrupted_continues(data, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(scanning, "scan", interrupt_at(5))
        with pytest.raises(KeyboardInterrupt):
            opened(data)
    monkeypatch.setattr(scanning, "scan", interrupt_at(len(videos(data)) - 5))
    assert_right(opened(data), videos(data))


def test_what_is_found_is_saved_from_time_to_time(data, monkeypatch):
    saved = list[int]()

    def spy(path: str, _: int) -> VideoRecord:
        file = data / "train.index.npz"
        saved.append(len(load_table(file)) if file.exists() else 0)
        return scan(path)

    monkeypatch.setattr(scanning, "scan", spy)
    monkeypatch.setattr(index_module, "_SAVE_EVERY", 0.0)
    monkeypatch.setattr(index_module, "_SAVING_SHARE", float("inf"))
    opened(data)
    assert saved == list(range(len(videos(data))))


KILLER = """
import os, signal
from pathlib import Path

def scan(job):
    path = job[1]
    if "killer" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    if "once" in path and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path
"""


@pytest.fixture
def killers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scanning kills the process that scans a path with "killer", and the first with "once"."""
    (tmp_path / "killing_scanner.py").write_text(KILLER)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("killing_scanner")
    monkeypatch.setattr(scanning, "_scan", module.scan)
    monkeypatch.setattr(scanning, "FEW", 0)


def test_a_killed_process_loses_nothing_and_its_killer_is_named(tmp_path, killers):
    names = [f"{number}" for number in range(30)]
    names[11], names[14], names[25] = "killer 1", "once", "killer 2"
    paths, found = [str(tmp_path / name) for name in names], dict[int, object]()
    scanning.scan_all(paths, found.__setitem__, workers=2)
    expected = [
        scanning.KILLER if "killer" in name else path
        for name, path in zip(names, paths, strict=True)
    ]
    said = {n: f.reason if isinstance(f, Entry) else f for n, f in found.items()}
    assert said == dict(enumerate(expected))


def test_a_killer_never_meets_the_process_that_trains(data, killers, monkeypatch):
    """Not even when it is the only video to be scanned again."""
    monkeypatch.setattr(scanning, "FEW", 64)
    (data / "killer").write_text("deadly")
    known = Table.of(["killer"], np.array([[6, 0]]), [Entry(reason=scanning.KILLER)])
    save_table(known, data / "train.index.npz")
    paths = [str(data / "killer")]
    assert opened(data, paths).unreadable == [(paths[0], scanning.KILLER)]


def test_buildings_at_the_same_time_do_not_disturb_one_another(data):
    paths = videos(data)
    for _ in range(5):
        (data / "train.index.npz").unlink(missing_ok=True)
        with ThreadPoolExecutor(4) as threads:
            for index in threads.map(lambda _: opened(data, paths), range(4)):
                assert_right(index, paths)
        assert len(load_table(data / "train.index.npz")) == len(paths)
    assert not list(data.glob(".*"))


def test_processes_find_what_this_one_does(data, monkeypatch):
    monkeypatch.setattr(scanning, "FEW", 0)
    (data / "text.mp4").write_text("no video")
    paths = videos(data)
    index = opened(data, workers=2)
    assert [path for path, _ in index.unreadable] == [
        paths.pop(paths.index(str(data / "text.mp4")))
    ]
    monkeypatch.setattr(ForkServerProcess, "start", None)
    assert_right(opened(data, paths), paths)


RANK = """
import datetime, sys, time
from pathlib import Path
import torch.distributed as dist
from slowfast_patches.datasets.reading import scan_all
from slowfast_patches.datasets.reading.index import open_index

rank, scan, patience = int(sys.argv[1]), scan_all.scan, datetime.timedelta(seconds=2)
Path(f"{sys.argv[2]} {rank}").touch()
while not Path(f"{sys.argv[2]} {1 - rank}").exists():
    time.sleep(0.01)  # importing torch may take either longer than the other's patience
dist.init_process_group("gloo", "file://" + sys.argv[2], patience, 2, rank)

def slowly(path, max_pixels):
    assert rank == 0
    time.sleep(0.4)
    return scan(path)

scan_all.scan = slowly
index = open_index(Path(sys.argv[3]), sys.argv[4:])
again = open_index(Path(sys.argv[3]), sys.argv[4:])
for number in range(len(index)):
    record = index.record(number)
    print(record.kind, record.video, record.keys, record.offsets, len(record.headers))
dist.destroy_process_group()
"""


def test_other_ranks_wait_and_get_what_the_first_found(data, tmp_path):
    """It takes 3.2 s, and processes wait for one another for 2 s."""
    paths, ranks = videos(data), list[subprocess.Popen[str]]()
    for rank in range(2):
        arguments = [str(rank), str(tmp_path / "meeting"), str(data / "train.csv"), *paths]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    said = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert len(said[0][0].splitlines()) >= len(paths)
