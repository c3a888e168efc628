"""Preparing data sets: what comes out, what is kept, and what happens when something goes wrong."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from multigrid import ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.datasets.loader import loading_advice
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import Kind
from tests.slowfast_patches.datasets.made_videos import (
    SAMPLES,
    needs_samples,
    noise,
    rows,
    times,
    write_jpeg,
    write_ssv2_json,
    write_video,
)

pytestmark = pytest.mark.slow
TOOL = Path(__file__).parents[3] / "tools" / "prepare_data.py"
LIMIT = 120.0
"""Seconds to wait for another process before the test fails."""
NAMES = ["a.mp4", "deep/er/b.avi", "with space/c d.mkv", "żółw/é.mp4", "a.avi"]

TARGETS = ["a.mp4", "deep/er/b.avi.mp4", "with space/c d.mkv.mp4", "żółw/é.mp4", "a.avi.mp4"]
SOURCES = {f"videos/{target}": name for target, name in zip(TARGETS, NAMES, strict=True)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five videos of classes 0, 1, 2, 0, 1, all in train.csv, and the last two in val.csv."""
    folder = tmp_path / "data"
    for number, name in enumerate(NAMES):
        write_video(folder / name, noise(3 + number, seed=number))
        os.utime(folder / name, (number, number))
    write_list(folder / "train.csv", *NAMES)
    lines = (folder / "train.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "val.csv").write_text("".join(lines[3:]), encoding="utf-8")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def prepare(run: Callable[..., tuple[int, str]], out: Path) -> Callable[..., tuple[int, str]]:
    """`prepare(csv, ...)` to `out`: the exit status and what was printed."""
    return lambda csv, *options: run("--csv", csv, "--output", out, *options)


def write_list(csv: Path, *names: object) -> Path:
    lines = (f"{name} {number % 3}\n" for number, name in enumerate(names))
    csv.write_text("".join(lines), encoding="utf-8")
    return csv


def temporaries(out: Path) -> list[Path]:
    return list(out.rglob("*.tmp"))


def writers(*files: Path) -> list[int]:
    """The processes that have one of these files open."""
    pids = list[int]()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if descriptor.readlink() in files:
                pids.append(int(descriptor.parts[2]))
    return pids


def wait_for(condition: Callable[[], object]) -> object:
    end = time.monotonic() + LIMIT
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return value


@contextlib.contextmanager
def meanwhile(deed: Callable[[], object]) -> Iterator[None]:
    """Do something in a thread while the body runs."""
    thread = threading.Thread(target=deed)
    thread.start()
    yield
    thread.join(LIMIT)


# What comes out.


def test_a_data_set_comes_out_as_it_went_in_and_trains(run, data, out):
    (data / "classes.txt").write_text("a\nb\nc\nd\n")  # the lists have no video of the last
    lists = ("--csv", data / "train.csv", "--csv", data / "val.csv")
    status, output = run(*lists, "--out", out)
    assert status == 0
    assert f"DATA.PATH_TO_DATA_DIR {out} DATA.PATH_PREFIX '' MODEL.NUM_CLASSES 4" in output
    assert json.loads((out / "classes.json").read_text()) == {"a": 0, "b": 1, "c": 2, "d": 3}
    expected = [(name, number % 3) for number, name in enumerate(SOURCES)]
    assert rows(out / "train.csv") == expected
    assert rows(out / "val.csv") == expected[3:]
    assert sorted(times(out)) == sorted(name for name, _ in expected)  # each once
    for number, (name, _) in enumerate(expected):
        record = scan(str(out / name))
        assert (record.kind, record.video.frames) == (Kind.PREPARED, 3 + number)

    report = json.loads(run(*lists, "--output", out, "--json")[1])
    assert (report["videos"], report["from_earlier_runs"], report["unreadable"]) == (5, 5, [])
    keys = {"DATA.PATH_TO_DATA_DIR": str(out), "DATA.PATH_PREFIX": "", "MODEL.NUM_CLASSES": 4}
    assert report["keys"] == keys

    before = sorted(path.name for path in out.iterdir())
    small = {"DATA.NUM_FRAMES": 8, "DATA.SAMPLING_RATE": 2, "DATA.TRAIN_CROP_SIZE": 48}
    small |= {"DATA.TRAIN_JITTER_SCALES": [48, 64], "TRAIN.BATCH_SIZE": 2, "NUM_GPUS": 0}
    train = ClipDataset(
        load_recipe(None, [x for pair in (keys | small).items() for x in pair]), "train"
    )
    for video in range(5):
        item = train[ClipRequest(video, 0, Shape(16, 4, 32), 0)]
        assert item["clip"].shape == (4, 32, 32, 3)
        assert (item["label"], item["failures"]) == (video % 3, [])
        assert 90 < item["clip"].mean() < 160
    assert sorted(path.name for path in out.iterdir()) == before  # the index was there already


def test_short_side_prefix_and_separator_are_obeyed(prepare, data, out, tmp_path):
    csv = tmp_path / "my.csv"
    csv.write_text("a.mp4\t7\nwith space/c d.mkv\t0\n")
    options = ["--prefix", data, "--separator", r"\t", "--short-side", 32]
    status, output = prepare(csv, "--workers", 1, *options)
    assert (status, r"DATA.PATH_LABEL_SEPARATOR '\t'" in output) == (0, True)
    names = [("videos/a.mp4", 7), ("videos/with space/c d.mkv.mp4", 0)]
    assert rows(out / "my.csv", "\t") == names
    video = scan(str(out / "videos/a.mp4")).video
    assert min(video.width, video.height) == 32


def test_frames_beyond_the_bound_are_left_out_until_it_is_raised(run, tmp_path, out):
    write_video(tmp_path / "data/small.mp4", noise(4))
    write_video(tmp_path / "data/large.mp4", noise(4, 128, 96))
    write_jpeg(tmp_path / "data/frames/1.jpg", 128, 96)
    csv = write_list(tmp_path / "data/all.csv", "small.mp4", "large.mp4", "frames")
    options = ("--csv", csv, "--output", out, "--max-frame-pixels")
    status, output = run(*options, 128 * 96 - 1)
    assert (status, len(rows(out / "all.csv"))) == (1, 1)
    assert output.count("128×96 pixels, more than DATA.MAX_FRAME_PIXELS 12287") == 2
    assert run(*options, 128 * 96)[0] == 0
    assert len(rows(out / "all.csv")) == 3


@needs_samples
def test_ssv2_is_prepared_as_the_advice_says_and_trains(run, tmp_path, out):
    folder = tmp_path / "ssv2"
    folder.mkdir()
    for name in (41, 5):
        shutil.copy(SAMPLES / "testsrc_vp9.webm", folder / f"{name}.webm")
    entries = ({"id": "41", "template": "Holding [something]"}, {"id": 5, "template": "Nothing"})
    labels = {"Holding something": "1", "Nothing": "0"}
    write_ssv2_json(folder, labels=labels, train=entries[:1], validation=entries[1:])
    keys = ["TRAIN.DATASET", "ssv2", "TEST.DATASET", "ssv2", "DATA.RANDOM_FLIP", False]
    keys += ["DATA.TRAIN_CROP_SIZE", 32, "DATA.TEST_CROP_SIZE", 32, "NUM_GPUS", 0]
    keys += ["DATA.TRAIN_JITTER_SCALES", [32, 40], "MODEL.NUM_CLASSES", 2]
    cfg = load_recipe(None, [*keys, "DATA.PATH_TO_DATA_DIR", str(folder)])
    advice = loading_advice(cfg, ClipDataset(cfg, "train"))
    assert f"multigrid-prepare --ssv2 {folder} --output DIR" in advice
    assert run("--ssv2", folder, "--output", out)[0] == 0
    assert rows(out / "train.csv") == [("videos/41.webm.mp4", 1)]
    assert rows(out / "val.csv") == [("videos/5.webm.mp4", 0)]
    cfg = load_recipe(None, [*keys, "DATA.PATH_TO_DATA_DIR", str(out)])
    assert class_names(cfg) == ("Nothing", "Holding something")
    videos = ClipDataset(cfg, "train")
    assert "prepare" not in loading_advice(cfg, videos)
    item = videos[ClipRequest(0, 0, Shape(16, 4, 32), 0)]
    assert (item["clip"].shape, item["label"], item["failures"]) == ((4, 32, 32, 3), 1, [])


# Which file becomes which.


def test_lists_of_several_folders_do_not_mix(run, tmp_path, out):
    lists = list[object]()
    for number, name in enumerate(("one", "two")):
        write_video(tmp_path / name / "x.mp4", noise(3 + number, seed=number))
        lists += ["--csv", write_list(tmp_path / name / f"{name}.csv", "x.mp4")]
    assert run(*lists, "--output", out)[0] == 0
    targets = [rows(out / f"{name}.csv")[0][0] for name in ("one", "two")]
    assert [scan(str(out / target)).video.frames for target in targets] == [3, 4]
    status, output = run(*lists[:2], "--output", out)
    assert (status, "give all lists at once" in output) == (2, True)


def test_absolute_paths_and_paths_upwards_lie_inside(prepare, data, out):
    (data / "lists").mkdir()
    names = ["../a.mp4", data / "a.avi", "../lists/../a.mp4", data / "a.mp4"]
    csv = write_list(data / "lists/train.csv", *names)
    assert prepare(csv)[0] == 0
    a, b = "videos/a.mp4", "videos/a.avi.mp4"
    assert [name for name, _ in rows(out / "train.csv")] == [a, b, a, a]
    assert sorted(times(out)) == sorted([a, b])


# Continuing.


def test_a_second_run_writes_what_is_missing_and_no_more(prepare, data, out):
    csv = data / "train.csv"
    prepare(csv)
    before = times(out)
    deleted, cut, changed, gone, same = before
    (out / deleted).unlink()
    (out / cut).write_bytes((out / cut).read_bytes()[:-1])
    write_video(data / SOURCES[changed], noise(9, seed=9))
    (data / SOURCES[gone]).unlink()
    status, output = prepare(csv)
    assert status == 0
    assert {name for name, when in times(out).items() if when == before[name]} >= {gone, same}
    assert scan(str(out / changed)).video.frames == 9
    assert scan(str(out / cut)).video.frames > 2
    assert len(rows(out / "train.csv")) == 5
    assert next(line for line in output.splitlines() if "earlier" in line).split()[-1] == "2"


def test_a_data_set_that_moved_is_the_same(prepare, data, tmp_path):
    prepare(data / "train.csv")
    data.rename(tmp_path / "moved")
    report = json.loads(prepare(tmp_path / "moved/train.csv", "--json")[1])
    assert report["from_earlier_runs"] == 5


def lasting(folder: Path, videos: int, frames: int = 120) -> Path:
    """Write a list of videos of several groups, whose targets take a while to complete."""
    for number in range(videos):
        write_video(folder / f"{number}.mp4", noise(frames, 128, 96, number))
    return write_list(folder / "train.csv", *(f"{number}.mp4" for number in range(videos)))


def whole(out: Path) -> dict[str, int]:
    """When the files that are whole were last modified."""
    return {name: when for name, when in times(out).items() if not name.endswith(".tmp")}


def inodes(out: Path) -> set[int]:
    return {(out / name).stat().st_ino for name in whole(out)}


def test_a_run_that_is_killed_or_interrupted_continues(run, tmp_path, out):
    csv = lasting(tmp_path / "data", 8)
    command = ["--csv", str(csv), "--output", str(out), "--workers", "2"]
    process = subprocess.Popen([sys.executable, str(TOOL), *command], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(whole(out)) >= 2 and temporaries(out))
    workers = writers(*temporaries(out))
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    made = len(whole(out))

    def interrupt() -> None:
        wait_for(lambda: len(whole(out)) > made and temporaries(out))
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt):
        status, output = run(*command)
    assert (status, "repeat the command to continue" in output) == (130, True)
    assert not list(out.glob("*.csv"))
    assert not temporaries(out)
    before = inodes(out)
    assert 2 <= len(before) < 8
    report = json.loads(run(*command, "--json")[1])
    assert report["from_earlier_runs"] >= len(before) - 2  # one a worker had not its time yet
    assert len(inodes(out) & before) >= len(before) - 2
    assert len(times(out)) == len(rows(out / "train.csv")) == 8


# Bad videos, and videos that kill.


def test_a_bad_video_is_left_out_and_reported(prepare, data, out):
    csv = data / "train.csv"
    good = (data / "a.mp4").read_bytes()
    (data / "a.mp4").write_text("#EXTM3U\n#EXTINF:1,\nb.mp4\n")
    (data / "a.avi").unlink()
    status, output = prepare(csv)
    assert status == 1
    assert [label for _, label in rows(out / "train.csv")] == [1, 2, 0]
    reasons = dict(line.split("\t") for line in (out / "unreadable.txt").read_text().splitlines())
    assert set(reasons) == {str(data / "a.mp4"), str(data / "a.avi")}
    assert reasons[str(data / "a.avi")] == "cannot be opened: No such file or directory"
    assert "2 videos cannot be read" in output
    assert f"{data / 'a.mp4'}: {reasons[str(data / 'a.mp4')]}" in output
    (data / "a.mp4").write_bytes(good)
    write_video(data / "a.avi", noise(4))
    assert prepare(csv)[0] == 0
    assert not (out / "unreadable.txt").exists()
    assert len(rows(out / "train.csv")) == 5


def test_a_wrong_prefix_stops_at_once(prepare, tmp_path):
    csv = write_list(tmp_path / "train.csv", *(f"{n}.mp4" for n in range(500)))
    status, output = prepare(csv, "--workers", 2)
    assert status == 2
    for word in ("none of", "No such file", "--prefix"):
        assert word in output


def test_a_killed_worker_is_survived_and_a_video_that_kills_two_is_named(prepare, tmp_path, out):
    csv = lasting(tmp_path / "data", 2, 400)
    write_video(tmp_path / "data/short.mp4", noise(4))
    write_list(csv, "0.mp4", "short.mp4", "1.mp4")
    left, killed = ["0", "0", "1"], set[int]()

    def victim() -> tuple[str, int] | None:
        files = ((name, out / f"videos/{name}.mp4.tmp") for name in left)
        open_files = ((name, pid) for name, file in files for pid in writers(file))
        return next((one for one in open_files if one[1] not in killed), None)

    def kill() -> None:
        while left:
            name, pid = wait_for(victim)
            os.kill(pid, signal.SIGKILL)
            left.remove(name)
            killed.add(pid)

    with meanwhile(kill):
        status, output = prepare(csv, "--workers", 1)
    assert (status, "0.mp4: kills the process" in output) == (1, True)
    assert rows(out / "train.csv") == [("videos/short.mp4", 1), ("videos/1.mp4", 2)]
    assert not temporaries(out)


# The disk.


def test_what_does_not_fit_is_refused_before_the_disk_is_full(prepare, tmp_path, out, monkeypatch):
    names = [f"{number}.mp4" for number in range(20)]
    for number, name in enumerate(names):
        write_video(tmp_path / "data" / name, noise(4, seed=number))
    csv = write_list(tmp_path / "data/train.csv", *names)
    usage = namedtuple("usage", "total used free")
    free = {"bytes": 10}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, free["bytes"]))
    command = [csv, "--workers", 2]
    status, output = prepare(*command)
    assert status == 2
    assert "the other 12 videos will take" in output
    assert 8 <= len(times(out)) < 14
    before, free["bytes"] = inodes(out), 10**9
    assert prepare(*command)[0] == 0
    assert inodes(out) > before
    assert len(rows(out / "train.csv")) == 20


def test_a_full_disk_loses_nothing(run, prepare, data, out, tmp_path):
    """A limit on the size of files stands for the end of the disk: writing fails in the middle."""
    write_video(data / "big.mp4", noise(20, 320, 256))
    csv = write_list(data / "train.csv", "a.mp4", "a.avi", "big.mp4", "with space/c d.mkv")
    run("--csv", data / "val.csv", "--output", tmp_path / "first")  # starts what forks workers
    server, limit = forkserver._forkserver._forkserver_pid, resource.RLIMIT_FSIZE
    before = resource.prlimit(server, limit, (40_000, resource.getrlimit(limit)[1]))
    try:
        status, output = prepare(csv, "--workers", 1)
    finally:
        resource.prlimit(server, limit, before)
    assert (status, "File too large" in output) == (2, True)
    assert not temporaries(out)
    assert not (out / "train.csv").exists()
    made = inodes(out)
    assert prepare(csv)[0] == 0
    assert inodes(out) >= made
    assert len(rows(out / "train.csv")) == 4


# What is refused.


def test_other_settings_and_lists_that_were_not_made_here_are_refused(
    run, prepare, data, out, tmp_path
):
    prepare(data / "val.csv")
    before = times(out)
    status, output = prepare(data / "val.csv", "--short-side", 128)
    assert (status, "prepared with short_side 256 (now 128); choose" in output) == (2, True)
    (tmp_path / "foreign").mkdir()
    write_list(tmp_path / "foreign/val.csv", "mine")
    status, output = run("--csv", data / "val.csv", "--output", tmp_path / "foreign")
    assert (status, "was not made by multigrid-prepare" in output) == (2, True)
    assert (tmp_path / "foreign/val.csv").read_text() == "mine 0\n"
    write_video(tmp_path / "other/a.mp4", noise(3))
    csv = write_list(tmp_path / "other/val.csv", "a.mp4")
    status, output = prepare(csv)
    assert (status, f"root {data} (now {csv.parent})" in output) == (2, True)
    assert times(out) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--csv", "data/train.csv"], "--output is needed"),
        (["--csv", "data/nothing.csv", "--output", "out"], "nothing.csv: no such file"),
        (["--csv", "data/train.csv", "--csv", "data/train.csv", "--output", "out"], "same name"),
        (["--csv", "data/train.csv", "--output", "out", "--short-side", "2"], "--short-side 2"),
        (["--csv", "data/train.csv", "--output", "out", "--val-fraction", "0.5"], "no effect"),
        (["--folder", "data", "--output", "data/out"], "is in the folder of the data set"),
    ],
)
def test_mistakes_are_named(run, data, tmp_path, monkeypatch, args, message):
    if "--folder" in args:
        shutil.rmtree(data / "deep")
        shutil.copy(data / "a.mp4", data / "żółw")
    monkeypatch.chdir(tmp_path)
    status, output = run(*args)
    assert status == 2
    assert message in output
    assert not (tmp_path / "out/videos").exists()
    assert not (data / "out").exists()
