"""The index: what it keeps, what it scans anew, and what happens to it."""

import contextlib
import gzip
import json
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import Queue
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from multigrid import Video
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import index as reading_index
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.index import VideoIndex, index_files, load_index, open_index
from slowfast_patches.datasets.reading.limits import ReadingLimits
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.launch.stopping import StopRequest, TrainingInterruptedError
from slowfast_patches.utils.command_line import exit_status
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.processes import WorkerCrashed
from tests.slowfast_patches.datasets.made_videos import (
    break_frame,
    grey,
    noise,
    write_jpeg,
    write_video,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One video of each kind."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("even.mp4", "counting.avi", "bare.h264"):
        write_video(folder / name, grey(12), gop=5)
    write_video(folder / "uneven.mp4", grey(6), stamps=[0, 1, 5, 6, 30, 31])
    source = str(folder / "even.mp4")
    write_prepared(source, scan(source), folder / "prepared.mp4")
    for number in range(3):
        write_jpeg(folder / f"frames/{number}.jpg", 30, 20)
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A data set of its own, without a list, whose content the index does not read."""
    return Path(shutil.copytree(made, tmp_path / "data"))


@pytest.fixture
def file(data: Path) -> Path:
    return data / "train.index.json.gz"


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
    return sorted(str(p) for p in folder.iterdir() if p.suffix not in (".gz", ".txt"))


def opened(folder: Path, paths: list[str] | None = None) -> VideoIndex:
    return open_index(folder / "train.csv", videos(folder) if paths is None else paths)


def assert_right(index: VideoIndex, paths: list[str]) -> None:
    """The records are what scanning gives, in the order of the list."""
    assert len(index) == len(paths)
    for number, path in enumerate(paths):
        assert index.record(number).packed() == scan(path).packed()


# What is kept.


def test_the_records_are_what_scanning_finds_now_when_loaded_and_when_moved(data, scanned):
    paths = videos(data)
    assert_right(opened(data), paths)
    assert len(scanned) == len(paths)
    loaded = opened(data)
    assert_right(loaded, paths)
    assert {loaded.record(number).kind for number in range(len(paths))} == {*Kind}
    moved = data.rename(data.with_name("moved"))
    assert_right(opened(moved), videos(moved))
    assert len(scanned) == len(paths), "nothing has changed"


def test_what_is_found_is_saved_while_others_are_scanned(data, file, monkeypatch):
    saved = list[int]()

    def spy(path: str, _: int) -> VideoRecord:
        saved.append(len(load_index(file)) if file.exists() else 0)
        return scan(path)

    monkeypatch.setattr(scanning, "scan", spy)
    monkeypatch.setattr(reading_index, "_SAVE_SECONDS", 0)
    opened(data)
    assert saved == list(range(len(videos(data))))


def test_what_is_new_changed_or_gone(data, scanned):
    opened(data)
    scanned.clear()
    write_video(data / "new.mp4", grey(4))
    write_video(data / "even.mp4", grey(7))
    (data / "bare.h264").unlink()
    for name in ("uneven.mp4", "frames"):
        before = (data / name).stat()
        if name == "frames":
            write_jpeg(data / "frames/7.jpg", 30, 20)
        later = before.st_mtime_ns + (name != "frames")
        os.utime(data / name, ns=(before.st_atime_ns, later))
    index = opened(data)
    assert_right(index, videos(data))
    assert sorted(scanned) == ["even.mp4", "frames", "new.mp4", "uneven.mp4"]
    assert index.record(videos(data).index(str(data / "frames"))).video == Video(4, 30.0, 30, 20)


def test_relative_paths_and_paths_outside_the_folder(data, tmp_path, scanned, monkeypatch):
    outside = str(write_video(tmp_path / "größer als 2 MB.mp4", grey(5)))
    monkeypatch.chdir(data)
    assert_right(open_index(Path("train.csv"), ["even.mp4", outside]), ["even.mp4", outside])
    scanned.clear()
    monkeypatch.chdir(tmp_path)
    paths = ["data/even.mp4", outside, str(data / "even.mp4")]  # in another order, one twice
    assert_right(opened(data, paths), paths)
    assert scanned == []


# Videos that cannot be read.


def test_unreadable_videos_are_reported_and_tried_again(data, scanned, caplog):
    (data / "text.mp4").write_text("no video")
    bad = [str(data / "text.mp4"), str(data / "missing.mp4")]
    paths = [*videos(data), bad[1]]
    listing = data / "train.index.unreadable.txt"
    for _ in range(2):
        caplog.clear()
        index = opened(data, paths)
        assert [path for path, _ in index.unreadable] == bad
        with pytest.raises(UnreadableVideoError, match="Invalid data"):
            index.record(paths.index(bad[0]))
        assert listing.read_text() == "".join(f"{p}\t{reason}\n" for p, reason in index.unreadable)
        (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert f"2 of the {len(paths)} videos" in warning
        assert str(listing) in warning
    assert len(scanned) == len(paths) + 2
    for path in bad:
        write_video(Path(path), grey(5))
    assert_right(opened(data, paths), paths)
    assert not listing.exists()


def test_videos_that_can_be_read_in_part_are_named_by_each_list(tmp_path, scanned, caplog):
    """The second time by the index: the video is not scanned again."""
    path = str(break_frame(write_video(tmp_path / "part.mp4", noise(24), gop=30), 13))
    whole = str(write_video(tmp_path / "whole.mp4", noise(24)))
    for _ in range(2):
        caplog.clear()
        index = open_index(tmp_path / "train.csv", [path, whole])
        assert [name for name, _ in index.damaged] == [path]
        (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert warning.startswith(f"1 of the 2 videos of {tmp_path}/train.csv can be read only")
        assert f"{path} cannot be decoded whole: 1 of 24 frames" in warning
    assert len(scanned) == 2


def test_a_disk_that_is_missing_for_once_costs_no_index(data, file, scanned):
    paths = videos(data)
    opened(data)
    away = data.rename(data.with_name("away"))
    data.mkdir()
    shutil.copy(away / file.name, data)
    assert len(opened(data, paths).unreadable) == len(paths)
    for path in paths:
        (away / Path(path).name).rename(path)
    scanned.clear()
    assert_right(opened(data), paths)
    assert scanned == []


def test_a_killer_is_named_and_not_tried_again_until_it_has_changed(data, scanned, monkeypatch):
    paths = [str(data / "killer")]
    Path(paths[0]).write_text("deadly")
    with monkeypatch.context() as patch:
        dead = lambda _, jobs, *__, **___: ((job, WorkerCrashed()) for job in jobs)  # noqa: E731
        patch.setattr(scanning, "run_each", dead)
        opened(data, paths)
    assert opened(data, paths).unreadable == [(paths[0], scanning.KILLER)]
    assert scanned == []
    Path(paths[0]).write_text("harmless")
    opened(data, paths)
    assert scanned == ["killer"]


# The file.


@pytest.mark.parametrize("kind", ["truncated", "pickle", "earlier"])
def test_a_file_that_is_no_good_index_is_built_anew(data, file, caplog, kind):
    opened(data)
    good = load_index(file)
    content = file.read_bytes()
    bad = {
        "truncated": content[: len(content) // 2],
        "pickle": pickle.dumps({"version": 3}),
        "earlier": gzip.compress(json.dumps({"version": 2, "videos": {}}).encode()),
    }
    file.write_bytes(bad[kind])
    assert_right(opened(data), videos(data))
    assert f"the index {file} is rebuilt" in caplog.text
    assert load_index(file) == good


def test_no_flipped_byte_is_believed(data, file):
    """What is loaded from a file with a byte changed is the whole truth or nothing of it."""
    opened(data)
    content, expected = file.read_bytes(), load_index(file)
    rng = np.random.default_rng(0)
    for position in rng.choice(len(content), 100, replace=False).tolist():
        changed = bytearray(content)
        changed[position] ^= int(rng.integers(1, 256))
        file.write_bytes(changed)
        with contextlib.suppress(ValueError):
            assert load_index(file) == expected


@pytest.mark.parametrize("record", ["text", "ä", "eJyrrgUAAXUA+Q==", "eJyLNtCJNtABw1goBQAqGQQl"])
def test_a_record_that_makes_no_sense_is_an_unreadable_video(data, file, record):
    """The checksum of a forged index may be right: {} and [0,[0,0,0,0],0,0,0] are no records."""
    opened(data)
    content = json.loads(gzip.decompress(file.read_bytes()))
    for entry in content["videos"].values():
        entry[2] = record
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(UnreadableVideoError, match="damaged index entry"):
        opened(data).record(0)


def test_where_the_folder_is_not_writable_the_index_lies_in_the_cache(
    data, file, cache, scanned, caplog
):
    file.mkdir()  # what even the superuser cannot overwrite
    assert_right(opened(data), videos(data))
    assert list(cache.iterdir()) == [index_files(data / "train.csv")[1]]
    scanned.clear()
    assert_right(opened(data), videos(data))
    assert scanned == []
    shutil.rmtree(cache)
    cache.write_text("a file where a folder should be")
    assert_right(opened(data), videos(data))
    assert "cannot be saved anywhere" in caplog.text


@pytest.mark.slow
def test_an_unchanged_index_of_3000_videos_opens_within_a_third_of_a_second(tmp_path, monkeypatch):
    paths = [str(tmp_path / f"{number:05}.mp4") for number in range(3_000)]
    for path in paths:
        Path(path).touch()
    monkeypatch.setattr(scanning, "_try_scan", lambda job: record)
    monkeypatch.setattr(scanning, "FEW", len(paths) + 1)
    video = Video(30, 30.0, 340, 256)
    record = VideoRecord(Kind.VIDEO, video, 0, np.arange(30) * 512, np.zeros(1, np.int64))
    opened(tmp_path, paths)
    monkeypatch.setattr(scanning, "_try_scan", lambda job: pytest.fail("scanned again"))
    seconds = list[float]()
    for _ in range(2):
        start = time.process_time()
        index = opened(tmp_path, paths)
        seconds.append(time.process_time() - start)
    assert index.record(2_999).packed() == record.packed()
    assert min(seconds) < 1 / 3


# Interruptions, and several processes.


def interrupt_at(count: int) -> Callable[[str, ReadingLimits], VideoRecord]:
    calls = list[str]()

    def interrupted(path: str, _: ReadingLimits) -> VideoRecord:
        calls.append(path)
        if len(calls) > count:
            raise KeyboardInterrupt
        return scan(path)

    return interrupted


def test_a_building_that_was_interrupted_continues(data, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(scanning, "scan", interrupt_at(4))
        with pytest.raises(KeyboardInterrupt):
            opened(data)
    monkeypatch.setattr(scanning, "scan", interrupt_at(len(videos(data)) - 4))
    assert_right(opened(data), videos(data))


def scan_and_stop(path: str, limits: ReadingLimits) -> VideoRecord:
    os.kill(os.getpid(), signal.SIGTERM)
    return scan(path, limits)


def test_a_signal_ends_a_scan_after_the_video_that_is_read(data, file, monkeypatch):
    monkeypatch.setattr(scanning, "scan", scan_and_stop)
    stopped = pytest.raises(TrainingInterruptedError, match="SIGTERM while videos were scanned")
    with StopRequest(World(0, 1, torch.device("cpu"))), stopped as ended:
        opened(data)
    assert exit_status(ended.value) == 75
    assert len(load_index(file)) == 1


def test_buildings_at_the_same_time_do_not_disturb_one_another(data, file):
    paths = videos(data)
    with ThreadPoolExecutor(4) as threads:
        for index in threads.map(lambda _: opened(data, paths), range(4)):
            assert_right(index, paths)
    assert len(load_index(file)) == len(paths)
    assert not list(data.glob("*.tmp"))


def open_as_rank(rank: int, meeting: Path, folder: Path, results: Queue) -> None:
    patience = timedelta(seconds=1)
    dist.init_process_group("gloo", f"file://{meeting}", patience, 2, rank)

    def slowly(path: str, limits: ReadingLimits) -> VideoRecord:
        assert rank == 0
        time.sleep(0.4)
        return scan(path, limits)

    scanning.scan = slowly
    index = opened(folder)
    results.put([index.record(number).packed() for number in range(len(index))])
    dist.destroy_process_group()


def stop_as_rank(rank: int, meeting: Path, folder: Path, results: Queue) -> None:
    dist.init_process_group("gloo", f"file://{meeting}", timedelta(seconds=9), 2, rank)
    scanning.scan = scan_and_stop
    with StopRequest(World(rank, 2, torch.device("cpu"))):
        try:
            opened(folder)
        except TrainingInterruptedError as error:
            results.put(str(error))


@pytest.mark.slow
def test_a_signal_to_the_first_rank_ends_the_scan_in_all(data, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    results, meeting = context.Queue(), tmp_path / "meeting"
    for rank in (0, 1):
        context.Process(target=stop_as_rank, args=(rank, meeting, data, results)).start()
    assert "SIGTERM" in results.get(timeout=60)
    assert "SIGTERM" in results.get(timeout=60)


@pytest.mark.slow
def test_other_ranks_wait_and_get_what_the_first_found(data, tmp_path, monkeypatch):
    """It takes 2 s, and processes wait for one another for 1 s."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    results, meeting = context.Queue(), tmp_path / "meeting"
    ranks = [context.Process(target=open_as_rank, args=(r, meeting, data, results)) for r in (0, 1)]
    for process in ranks:
        process.start()
    expected = [scan(path).packed() for path in videos(data)]
    assert results.get(timeout=60) == results.get(timeout=60) == expected
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
