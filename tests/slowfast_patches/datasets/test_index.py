"""The index: what it keeps, what it scans anew, and what happens to it."""

import contextlib
import logging
import multiprocessing
import os
import pickle
import shutil
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import Queue
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from multigrid import Video
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import index as reading_index
from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.index import VideoIndex, index_files, load_index, open_index
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.processes import Died
from tests.slowfast_patches.datasets.made_videos import grey, write_jpeg, write_video


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One video of each kind."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("even.mp4", "rounded.mkv", "counting.avi", "bare.h264"):
        write_video(folder / name, grey(12), gop=5)
    write_video(folder / "uneven.mp4", grey(6), stamps=[0, 1, 5, 6, 30, 31])
    source = str(folder / "even.mp4")
    write_prepared(source, scan(source), folder / "prepared.mp4")
    write_prepared(source, scan(source), folder / "smaller.mp4", short_side=32)
    for number in range(3):
        write_jpeg(folder / f"frames/{number}.jpg", 30, 20)
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


def assert_right(index: VideoIndex, paths: list[str]) -> None:
    """The records are what scanning gives, in the order of the list."""
    assert len(index) == len(paths)
    for number, path in enumerate(paths):
        assert index.record(number).packed() == scan(path).packed()


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


def test_what_is_found_is_saved_while_others_are_scanned(data, monkeypatch):
    saved = list[int]()

    def spy(path: str, _: int) -> VideoRecord:
        file = index_files(data / "train.csv")[0]
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
    before = (data / "uneven.mp4").stat()
    os.utime(data / "uneven.mp4", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert_right(opened(data), videos(data))
    assert sorted(scanned) == ["even.mp4", "new.mp4", "uneven.mp4"]
    assert_right(opened(data), videos(data))
    assert len(scanned) == 3


def test_a_folder_changes_with_the_number_of_its_frames(data, scanned):
    opened(data)
    before = (data / "frames").stat()
    write_jpeg(data / "frames/7.jpg", 30, 20)
    os.utime(data / "frames", ns=(before.st_atime_ns, before.st_mtime_ns))
    scanned.clear()
    index = opened(data)
    assert scanned == ["frames"]
    assert index.record(videos(data).index(str(data / "frames"))).video == Video(4, 30.0, 30, 20)


def test_a_data_set_may_be_moved(data, scanned):
    opened(data)
    scanned.clear()
    moved = data.rename(data.with_name("moved"))
    assert_right(opened(moved), videos(moved))
    assert scanned == []


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
    for name in ("text.mp4", "missing.mp4"):
        write_video(data / name, grey(5))
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
    assert opened(data).record(3).packed() == index.record(3).packed()
    assert scanned == []


# The file.


def damage(file: Path, kind: str) -> None:
    """Put something else in the place of an index."""
    content = file.read_bytes()
    if kind == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif kind == "pickle":
        file.write_bytes(pickle.dumps({"version": 2}))
    elif kind == "of an earlier version":
        np.savez(file, multigrid_index=np.array([1, 7]), frames=np.ones(8, np.int32))


def rewrite(file: Path, **arrays: np.ndarray) -> None:
    with np.load(file) as content:
        old = dict(content)
    np.savez(file, **{**old, **arrays})


@pytest.mark.parametrize("kind", ["truncated", "pickle", "of an earlier version"])
def test_a_file_that_is_no_good_index_is_built_anew(data, scanned, caplog, kind):
    opened(data)
    file = data / "train.index.npz"
    good = load_index(file)
    damage(file, kind)
    scanned.clear()
    caplog.clear()
    assert_right(opened(data), videos(data))
    assert len(scanned) == len(videos(data))
    assert f"the index {file} is built anew" in caplog.text
    assert load_index(file) == good


def test_no_flipped_byte_is_believed(data):
    """What is loaded from a file with a byte changed is the whole truth or nothing of it."""
    opened(data)
    file = data / "train.index.npz"
    content, expected = file.read_bytes(), load_index(file)
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), 100, replace=False).tolist():
        changed = bytearray(content)
        changed[place] ^= int(rng.integers(1, 256))
        file.write_bytes(changed)
        with contextlib.suppress(ValueError):
            assert load_index(file) == expected


@pytest.mark.parametrize("content", [b"text", *map(zlib.compress, (b"{}", b"[0,[0,0,0,0],0,0,0]"))])
def test_a_record_that_makes_no_sense_is_an_unreadable_video(data, content):
    """The checksums of a forged index may be right."""
    opened(data)
    count = len(videos(data))
    ends = np.arange(count + 1) * len(content)
    values = np.frombuffer(content * count, np.uint8)
    rewrite(data / "train.index.npz", contents=values, content_ends=ends)
    with pytest.raises(UnreadableVideoError, match="damaged in the index"):
        opened(data).record(0)


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


def test_an_index_that_can_be_kept_nowhere_is_used_all_the_same(data, cache, caplog, monkeypatch):
    (data / "train.index.npz").mkdir()
    cache.parent.write_text("a file where a folder should be")
    assert_right(opened(data), videos(data))
    assert "can be kept nowhere" in caplog.text


@pytest.mark.slow
def test_an_unchanged_index_of_3000_videos_opens_within_a_third_of_a_second(tmp_path, monkeypatch):
    paths = [str(tmp_path / f"{number:05}.mp4") for number in range(3_000)]
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
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


def test_a_killer_is_named_and_not_tried_again_until_it_has_changed(data, scanned, monkeypatch):
    (data / "killer").write_text("deadly")
    paths = [str(data / "killer")]
    with monkeypatch.context() as patch:
        dead = lambda _, jobs, *__, **___: ((job, Died()) for job in jobs)  # noqa: E731
        patch.setattr(scanning, "run_each", dead)
        assert opened(data, paths).unreadable == [(paths[0], scanning.KILLER)]
    assert opened(data, paths).unreadable == [(paths[0], scanning.KILLER)]
    assert scanned == []
    (data / "killer").write_text("harmless")
    opened(data, paths)
    assert scanned == ["killer"]


def test_buildings_at_the_same_time_do_not_disturb_one_another(data):
    paths = videos(data)
    for _ in range(2):
        (data / "train.index.npz").unlink(missing_ok=True)
        with ThreadPoolExecutor(4) as threads:
            for index in threads.map(lambda _: opened(data, paths), range(4)):
                assert_right(index, paths)
        assert len(load_index(data / "train.index.npz")) == len(paths)
    assert not list(data.glob(".*"))


def open_as_rank(rank: int, meeting: Path, folder: Path, found: Queue) -> None:
    patience = timedelta(seconds=1)
    dist.init_process_group("gloo", f"file://{meeting}", patience, 2, rank)

    def slowly(path: str, max_pixels: int) -> VideoRecord:
        assert rank == 0
        time.sleep(0.25)
        return scan(path, max_pixels)

    scanning.scan = slowly
    index = opened(folder)
    found.put([index.record(number).packed() for number in range(len(index))])
    dist.destroy_process_group()


@pytest.mark.slow
def test_other_ranks_wait_and_get_what_the_first_found(data, tmp_path, monkeypatch):
    """It takes 2 s, and processes wait for one another for 1 s."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    found, meeting = context.Queue(), tmp_path / "meeting"
    ranks = [context.Process(target=open_as_rank, args=(r, meeting, data, found)) for r in (0, 1)]
    for process in ranks:
        process.start()
    assert (
        found.get(timeout=60) == found.get(timeout=60) == [scan(p).packed() for p in videos(data)]
    )
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
