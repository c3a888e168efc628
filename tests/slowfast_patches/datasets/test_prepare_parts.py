"""Parts of multigrid-prepare with made-up sources, and what its report says."""

from __future__ import annotations

import errno
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import av
import pytest

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.preparing import prepare as preparing
from slowfast_patches.datasets.preparing.prepare import PreparationReport, prepare
from slowfast_patches.datasets.preparing.sources import Source
from slowfast_patches.datasets.preparing.video_lists import VideoList
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.utils.files import TEMPORARY
from slowfast_patches.utils.processes import WorkerCrashed, run_each


def test_a_report_names_lists_keys_and_the_first_unreadable_videos():
    unreadable = {f"{number}.mp4": "is damaged" for number in range(12)}
    keys = {"DATA.PATH_TO_DATA_DIR": "/my data", "MODEL.NUM_CLASSES": 3}
    lines = str(PreparationReport(keys, {"train.csv": 7, "val.csv": 2}, 5, unreadable)).split("\n")
    assert lines[:4] == [
        "train.csv: 7 videos",
        "val.csv: 2 videos",
        "videos that an earlier run had prepared: 5",
        "12 videos cannot be read and are left out (see unreadable.txt):",
    ]
    assert lines[4:-1] == [f"  {number}.mp4: is damaged" for number in range(10)]
    assert lines[-1].endswith("DATA.PATH_TO_DATA_DIR '/my data' MODEL.NUM_CLASSES 3")
    assert "unreadable" not in str(PreparationReport(keys, {"train.csv": 7}, 0, {}))


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1, 16, None, 0), ""),
        ((8, 256, 1000.0, 51), ""),
        ((1, 16, 0.5, 18), ""),
        ((0, 16, None, 18), "--workers is 0"),
        ((1, 15, None, 18), "--short-side is 15"),
        ((1, 16, 0.0, 18), "--fps is 0,"),
        ((1, 16, -1.0, 18), "--fps is -1"),
        ((1, 16, 1000.5, 18), "--fps is 1000.5"),
        ((1, 16, float("inf"), 18), "--fps is inf"),
        ((1, 16, float("nan"), 18), "--fps is nan"),
        ((1, 16, None, -0.5), "--crf is -0.5"),
        ((1, 16, None, 51.5), "--crf is 51.5"),
    ],
)
def test_numbers_may_have_their_limits(numbers, said):
    if not said:
        preparing._check_numbers(*numbers)
        return
    with pytest.raises(ValueError, match=said):
        preparing._check_numbers(*numbers)


def source(name: str, size: int = 100) -> Source:
    return Source(f"/{name}.avi", f"videos/{name}.mp4", size, 1, 2)


# The disk.


@pytest.mark.parametrize(("free", "fits"), [(1000, True), (910, True), (908, False), (10, False)])
def test_the_remaining_videos_must_fit_with_a_tenth_to_spare(tmp_path, monkeypatch, free, fits):
    """Of 1000 bytes, 600 are left. The readable 200 of the first 400 have become 333 bytes, so the
    others will need 600 · 333 / 200 = 999 bytes, which is less than 1.1 · 910."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/a.mp4").write_bytes(bytes(300))
    (tmp_path / "videos/b.mp4").write_bytes(bytes(33))
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    done = [source("a"), source("b"), source("bad", 200)]
    check = partial(preparing._check_sample, done, {done[2]: "is damaged"}, 1000)
    if fits:
        check(tmp_path)
        return
    with pytest.raises(ValueError, match="the remaining videos will need about 9"):
        check(tmp_path)
    monkeypatch.setattr(preparing, "is_remote", lambda path: True)
    check(tmp_path)  # a bucket has no limit


def test_sources_without_bytes_say_nothing_about_the_size(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/a.mp4").write_bytes(bytes(300))
    preparing._check_sample([source("a", 0)], {}, 0, tmp_path)


def test_a_sample_without_a_readable_video_stops_the_run(tmp_path):
    done = [source("a"), source("b")]
    reasons = dict.fromkeys(done, "is damaged")
    with pytest.raises(
        ValueError, match=r"none of the first 2 videos .* /a\.avi: is damaged\. Che"
    ):
        preparing._check_sample(done, reasons, 1000, tmp_path)


@pytest.mark.parametrize(
    ("count", "workers", "checked"),
    [(9, 1, 8), (8, 1, None), (9, 4, 8), (11, 5, 10), (10, 5, None), (3, 1, None)],
)
def test_the_first_eight_or_two_per_process_are_checked(
    tmp_path, monkeypatch, count, workers, checked
):
    started, samples, recorded = [], [], []

    def run_each(work, jobs, workers):
        started.append((workers, list(jobs)))
        yield from ((job, work(job)) for job in jobs)

    monkeypatch.setattr(preparing, "run_each", run_each)
    monkeypatch.setattr(
        preparing,
        "_check_sample",
        lambda done, reasons, total, out: samples.append((len(done), len(reasons), total)),
    )
    sources = [source(str(number), number) for number in range(count)]
    outcomes = {sources[1]: "is damaged", sources[2]: WorkerCrashed()}
    reasons = preparing._prepare_all(
        sources,
        lambda one: outcomes.get(one, ""),
        tmp_path,
        workers,
        SimpleNamespace(add=recorded.append),
    )
    assert reasons == {
        sources[1]: "is damaged",
        sources[2]: "crashes the process that reads the video",
    }
    assert set(recorded) == set(sources) - set(reasons)
    assert [done for done, _, _ in samples] == [checked] * bool(checked)
    assert all(total == sum(range(count)) for _, _, total in samples)
    ((given, jobs),) = started
    assert given == workers
    assert sorted(jobs) == sorted(sources)
    assert jobs != sources, "they are not in random order"


# One video.


def fail(error: Exception, *args: object, **how: object) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnreadableVideoError("is damaged"), "is damaged"),
        (av.ArgumentError(22, "bad size"), "cannot be encoded: ArgumentError: "),
        (None, ""),
    ],
)
def test_what_cannot_be_prepared_has_a_reason(tmp_path, monkeypatch, error, reason):
    given = []
    monkeypatch.setattr(preparing, "scan", lambda path: f"scan of {path}")

    def write_prepared(*args, **how):
        given.append((args, how))
        if error:
            raise error

    monkeypatch.setattr(preparing, "write_prepared", write_prepared)
    found = preparing._prepare_one(tmp_path, 64, 15.0, 20, source("deep/a"))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    target = tmp_path / "videos/deep/a.mp4"
    assert given == [
        (
            ("/deep/a.avi", "scan of /deep/a.avi", target),
            {"short_side": 64, "fps": 15.0, "crf": 20, "modified": 2},
        )
    ]
    assert target.parent.is_dir()


@pytest.mark.parametrize("kind", [OSError, av.PermissionError])
def test_an_error_of_the_disk_names_the_file_and_ends_the_run(tmp_path, monkeypatch, kind):
    """Errors of PyAV cannot be pickled, so they become those of Python."""
    error = kind(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(preparing, "scan", lambda path: None)
    monkeypatch.setattr(preparing, "write_prepared", partial(fail, error))
    with pytest.raises(OSError, match="No space left") as caught:
        preparing._prepare_one(tmp_path, 64, None, 20, source("a"))
    assert type(caught.value) is OSError
    assert (caught.value.errno, caught.value.filename) == (
        errno.ENOSPC,
        str(tmp_path / "videos/a.mp4"),
    )


# A whole run.


@pytest.fixture
def made(monkeypatch):
    """Replace what takes long. Return the paths of the indexes that are opened.

    A source that contains "bad" is unreadable, and others become files of the same content.
    """
    indexes = []

    def prepare_one(out, short_side, fps, crf, one):
        content = Path(one.path).read_text()
        if content == "bad":
            return "is damaged"
        (out / one.target).parent.mkdir(parents=True, exist_ok=True)
        (out / one.target).write_text(content)
        (out / one.target).with_suffix(TEMPORARY).touch()
        return ""

    def open_index(csv, videos, workers):
        indexes.append((csv.name, [Path(video).name for video in videos], workers))

    monkeypatch.setattr(preparing, "_prepare_one", prepare_one)
    monkeypatch.setattr(preparing, "open_index", open_index)
    monkeypatch.setattr(preparing, "run_each", lambda work, jobs, _: run_each(work, jobs, 0))
    return indexes


def lists_of(folder: Path, **names: str) -> list[VideoList]:
    """Return lists of videos, whose labels are 0, 1, 2 and so on. Each contains its name."""
    lists = []
    for name, videos in names.items():
        for video in videos.split():
            if not (folder / f"{video}.mp4").exists():
                (folder / f"{video}.mp4").write_text(video)
        listed = [
            LabelledVideo(str(folder / f"{video}.mp4"), label)
            for label, video in enumerate(videos.split())
        ]
        lists.append(VideoList(f"{name}.csv", folder / f"{name}.csv", folder, listed))
    return lists


def test_a_run_writes_lists_indexes_and_the_keys_for_training(tmp_path, made, caplog):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    lists = lists_of(data, train="a b bad c", val="c d")
    report = prepare(lists, out, workers=3, separator=",")
    assert (out / "train.csv").read_text() == "videos/a.mp4,0\nvideos/b.mp4,1\nvideos/c.mp4,3\n"
    assert report.lists == {"train.csv": 3, "val.csv": 2}
    assert report.unreadable == {str(data / "bad.mp4"): "is damaged"}
    assert report.kept == 0
    assert report.keys == {
        "DATA.PATH_TO_DATA_DIR": str(out),
        "DATA.PATH_PREFIX": "",
        "DATA.PATH_LABEL_SEPARATOR": ",",
        "MODEL.NUM_CLASSES": 4,
    }
    assert made == [
        ("train.csv", ["a.mp4", "b.mp4", "c.mp4"], 3),
        ("val.csv", ["c.mp4", "d.mp4"], 3),
    ]
    assert "1 of the 2 videos of val are also in train" in caplog.text
    assert not list(out.rglob(f"*{TEMPORARY}"))
    assert (out / "unreadable.txt").exists()
    again = prepare(lists_of(data, train="a b c"), out, workers=1, classes="wxyz")
    assert (again.kept, again.unreadable) == (3, {})
    assert again.keys == {
        "DATA.PATH_TO_DATA_DIR": str(out),
        "DATA.PATH_PREFIX": "",
        "MODEL.NUM_CLASSES": 4,
    }
    assert (out / "classes.json").exists()
    assert not (out / "unreadable.txt").exists()


def test_a_run_that_cannot_write_its_lists_does_not_begin(tmp_path, made):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    odd = [LabelledVideo(f"{data}/a\n.mp4", 0)]
    with pytest.raises(ValueError, match="cannot be written to a csv file"):
        prepare([VideoList("train.csv", data, data, odd)], out, workers=1)
    with pytest.raises(ValueError, match="--workers is 0"):
        prepare(lists_of(data, train="a"), out, workers=0)
    with pytest.raises(ValueError, match="lies in the folder of the original"):
        prepare(lists_of(data, train="a"), data, workers=1)
    assert not out.exists()


def test_lists_in_a_bucket_are_published_with_their_indexes(tmp_path, made, monkeypatch):
    published = []
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    monkeypatch.setattr(preparing, "is_remote", lambda path: True)
    monkeypatch.setattr(preparing, "publish_index", lambda csv: published.append(csv.name))
    out.mkdir()
    prepare(lists_of(data, train="a", val="b"), out, workers=1)
    assert published == ["train.csv", "val.csv"]
    assert not (out / "run.lock").exists()
