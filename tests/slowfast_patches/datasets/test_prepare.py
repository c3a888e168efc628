"""Preparing data sets: what comes out, what is kept, and what happens when something goes wrong."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from multigrid import ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.kinetics import Kinetics
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import Kind
from tests.slowfast_patches.datasets.made_videos import noise, write_jpeg, write_video

pytestmark = pytest.mark.slow
TOOL = Path(__file__).parents[3] / "tools" / "prepare_data.py"
LIMIT = 120.0
"""Seconds to wait for another process before the test fails."""


@pytest.fixture
def run(load_program, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`run("--csv", path, ...)`: the tool's exit status and what it said."""
    tool = load_program("tools/prepare_data.py")

    def run_tool(*args: object) -> tuple[int, str]:
        try:
            status = tool.main([str(arg) for arg in args])
        except SystemExit as error:
            status = error.code
        said = capsys.readouterr()
        return status, said.out + said.err

    return run_tool


NAMES = ["a.mp4", "deep/er/b.avi", "with space/c d.mkv", "żółw/é.mp4", "a.avi"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five videos of classes 0, 1, 2, 0, 1, all in train.csv, and the last two in val.csv."""
    folder = tmp_path / "data"
    for number, name in enumerate(NAMES):
        write_video(folder / name, noise(3 + number, seed=number))
    lines = [f"{name} {number % 3}\n" for number, name in enumerate(NAMES)]
    (folder / "train.csv").write_text("".join(lines), encoding="utf-8")
    (folder / "val.csv").write_text("".join(lines[3:]), encoding="utf-8")
    return folder


def rows(csv: Path, separator: str = " ") -> list[tuple[str, int]]:
    lines = [line.rpartition(separator) for line in csv.read_text(encoding="utf-8").splitlines()]
    return [(name, int(label)) for name, _, label in lines]


def times(out: Path) -> dict[str, int]:
    """When each prepared file was written."""
    found = (path for path in (out / "videos").rglob("*") if path.is_file())
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in found}


def temporaries(out: Path) -> list[Path]:
    return list(out.rglob("*.tmp"))


def writers(*files: Path) -> list[int]:
    """The processes that have one of these files open."""
    found = list[int]()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if descriptor.readlink() in files:
                found.append(int(descriptor.parts[2]))
    return found


def wait_for(condition: Callable[[], object]) -> object:
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return found


# What comes out.


def test_a_data_set_comes_out_as_it_went_in(run, data, tmp_path):
    out = tmp_path / "out"
    (data / "classes.txt").write_text("a\nb\nc\nd\n")  # the lists have no video of the last
    status, said = run("--csv", data / "train.csv", "--csv", data / "val.csv", "--out", out)
    assert status == 0
    assert json.loads((out / "classes.json").read_text()) == {"a": 0, "b": 1, "c": 2, "d": 3}
    expected = [(f"videos/{name}.mp4", number % 3) for number, name in enumerate(NAMES)]
    assert rows(out / "train.csv") == expected
    assert rows(out / "val.csv") == expected[3:]
    assert sorted(times(out)) == sorted(name for name, _ in expected)  # each once
    for number, (name, _) in enumerate(expected):
        record = scan(str(out / name))
        assert (record.kind, record.video.frames) == (Kind.PREPARED, 3 + number)
    assert not temporaries(out)
    assert not (out / "unreadable.txt").exists()
    assert f"DATA.PATH_TO_DATA_DIR {out} DATA.PATH_PREFIX '' MODEL.NUM_CLASSES 4" in said
    table = {line[:30].strip(): line.split()[-1] for line in said.splitlines() if line.strip()}
    assert (table["videos"], table["frames"], table["unreadable, left out"]) == ("5", "25", "0")
    lists = ("--csv", data / "train.csv", "--csv", data / "val.csv")
    found = json.loads(run(*lists, "--output", out, "--json")[1])
    assert (found["videos"], found["from_earlier_runs"], found["frames"]) == (5, 5, 25)
    keys = {"DATA.PATH_TO_DATA_DIR": str(out), "DATA.PATH_PREFIX": "", "MODEL.NUM_CLASSES": 4}
    assert found["keys"] == keys


def test_training_takes_the_result(run, data, tmp_path):
    out = tmp_path / "out"
    status, said = run("--csv", data / "train.csv", "--out", out)
    assert (status, "MODEL.NUM_CLASSES 3" in said) == (0, True)
    before = sorted(path.name for path in out.iterdir())
    keys = ["DATA.PATH_TO_DATA_DIR", str(out), "DATA.NUM_FRAMES", 8, "DATA.SAMPLING_RATE", 2]
    keys += ["DATA.TRAIN_CROP_SIZE", 48, "DATA.TRAIN_JITTER_SCALES", [48, 64]]
    keys += ["TRAIN.BATCH_SIZE", 2, "NUM_GPUS", 0, "MODEL.NUM_CLASSES", 3]
    train = Kinetics(load_recipe(None, keys), "train")
    for video in range(5):
        item = train[ClipRequest(video, 0, Shape(16, 4, 32), 0)]
        assert item["clip"].shape == (4, 32, 32, 3)
        assert (item["label"], item["failures"]) == (video % 3, [])
        assert 90 < item["clip"].mean() < 160
    assert sorted(path.name for path in out.iterdir()) == before  # the index was there already


def test_short_side_psnr_prefix_and_separator_are_obeyed(run, data, tmp_path):
    (tmp_path / "lists").mkdir()
    csv, out = tmp_path / "lists" / "my.csv", tmp_path / "out"
    csv.write_text("a.mp4\t7\nwith space/c d.mkv\t0\n")
    options = ["--prefix", data, "--separator", r"\t", "--short-side", 32, "--psnr", 45]
    status, said = run("--csv", csv, "--out", out, "--workers", 1, *options)
    assert (status, r"DATA.PATH_LABEL_SEPARATOR '\t'" in said) == (0, True)
    assert rows(out / "my.csv", "\t") == [
        ("videos/a.mp4.mp4", 7),
        ("videos/with space/c d.mkv.mp4", 0),
    ]
    video = scan(str(out / "videos/a.mp4.mp4")).video
    assert min(video.width, video.height) == 32
    journal = [json.loads(line) for line in (out / "prepared.jsonl").read_text().splitlines()]
    assert min(line["psnr"] for line in journal if "psnr" in line) >= 45


def test_frames_beyond_the_bound_are_left_out_until_it_is_raised(run, tmp_path):
    write_video(tmp_path / "data/small.mp4", noise(4))
    write_video(tmp_path / "data/large.mp4", noise(4, 128, 96))
    write_jpeg(tmp_path / "data/frames/1.jpg", 128, 96)
    csv, out = tmp_path / "data/all.csv", tmp_path / "out"
    csv.write_text("small.mp4 0\nlarge.mp4 0\nframes 0\n")
    options = ("--csv", csv, "--output", out, "--max-frame-pixels")
    status, said = run(*options, 128 * 96 - 1)
    assert (status, len(rows(out / "all.csv"))) == (1, 1)
    assert said.count("128×96 pixels, more than DATA.MAX_FRAME_PIXELS 12287") == 2
    assert run(*options, 128 * 96)[0] == 0
    assert len(rows(out / "all.csv")) == 3


def test_a_source_that_is_prepared_is_linked(run, data, tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    run("--csv", data / "val.csv", "--out", first)
    status, _ = run("--csv", first / "val.csv", "--out", second)
    assert status == 0
    for name, _ in rows(first / "val.csv"):
        assert os.path.samefile(first / name, second / "videos" / f"{name}.mp4")
    assert run("--csv", first / "val.csv", "--out", third, "--short-side", 32)[0] == 0
    assert min(scan(str(third / rows(third / "val.csv")[0][0])).video[2:4]) == 32


# Which file becomes which.


def test_lists_of_several_folders_do_not_mix(run, tmp_path):
    for number, name in enumerate(("one", "two")):
        write_video(tmp_path / name / "x.mp4", noise(3 + number, seed=number))
        (tmp_path / name / f"{name}.csv").write_text("x.mp4 0\n")
    both, out = [tmp_path / "one/one.csv", tmp_path / "two/two.csv"], tmp_path / "out"
    assert run("--csv", both[0], "--out", out)[0] == 0
    before = times(out)
    assert run("--csv", both[1], "--csv", both[0], "--out", out)[0] == 0
    targets = [rows(out / f"{name}.csv")[0][0] for name in ("one", "two")]
    assert [scan(str(out / target)).video.frames for target in targets] == [3, 4]
    assert times(out).items() >= before.items()
    assert run("--csv", both[0], "--csv", both[1], "--out", tmp_path / "anew")[0] == 0


def test_absolute_paths_and_paths_upwards_lie_inside(run, data, tmp_path):
    (data / "lists").mkdir()
    long = data.joinpath("x" * 247 + ".avi")  # with .mp4 behind it, more than a file system takes
    (data / "a.avi").rename(long)
    names = ["../a.mp4", str(long), "../lists/../a.mp4", str(data / "a.mp4")]
    (data / "lists/train.csv").write_text("".join(f"{name} 0\n" for name in names))
    out = tmp_path / "out"
    assert run("--csv", data / "lists/train.csv", "--out", out)[0] == 0
    a, b = (name for name, _ in rows(out / "train.csv")[:2])
    assert (a, b[:108]) == ("videos/a.mp4.mp4", "videos/" + "x" * 101)
    assert [name for name, _ in rows(out / "train.csv")] == [a, b, a, a]
    assert sorted(times(out)) == sorted([a, b])


# Continuing.


def test_a_second_run_writes_what_is_missing_and_no_more(run, data, tmp_path):
    out = tmp_path / "out"
    command = ["--csv", data / "train.csv", "--out", out]
    run(*command)
    before = times(out)
    deleted, cut, changed, gone, same = before
    (out / deleted).unlink()
    (out / cut).write_bytes((out / cut).read_bytes()[:-1])
    write_video(data / changed.removeprefix("videos/").removesuffix(".mp4"), noise(9, seed=9))
    (data / gone.removeprefix("videos/").removesuffix(".mp4")).unlink()
    status, said = run(*command)
    assert status == 0
    after = times(out)
    assert {name for name in before if before[name] == after.get(name)} == {gone, same}
    assert scan(str(out / changed)).video.frames == 9
    assert len(rows(out / "train.csv")) == 5
    assert next(line for line in said.splitlines() if "earlier" in line).split()[-1] == "2"


def test_a_data_set_that_moved_is_the_same(run, data, tmp_path):
    run("--csv", data / "train.csv", "--out", tmp_path / "out")
    before = times(tmp_path / "out")
    data.rename(tmp_path / "moved")
    assert run("--csv", tmp_path / "moved/train.csv", "--out", tmp_path / "out")[0] == 0
    assert times(tmp_path / "out") == before


def start(*args: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(TOOL), *map(str, args)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def lasting(folder: Path, videos: int) -> Path:
    """A list of videos of several groups each, whose targets exist for a while before they are
    whole."""
    for number in range(videos):
        write_video(folder / f"{number}.mp4", noise(120, 128, 96, number))
    csv = folder / "train.csv"
    csv.write_text("".join(f"{number}.mp4 0\n" for number in range(videos)))
    return csv


def entries(out: Path) -> int:
    journal = out / "prepared.jsonl"
    return journal.read_text().count('"target"') if journal.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_continues(run, tmp_path, number):
    csv, out = lasting(tmp_path / "data", 6), tmp_path / "out"
    process = start("--csv", csv, "--out", out, "--workers", 2, stdout=subprocess.DEVNULL)
    wait_for(lambda: entries(out) >= 2 and temporaries(out))
    workers = writers(*temporaries(out))
    process.send_signal(number)
    said = process.communicate(timeout=LIMIT)[1]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    if number == signal.SIGINT:
        assert (process.returncode, "the same command continues" in said) == (130, True)
        assert not temporaries(out)
    assert not (out / "train.csv").exists()
    before = times(out)
    noted = [json.loads(line) for line in (out / "prepared.jsonl").read_text().splitlines()]
    whole = {line["target"] for line in noted if "target" in line}
    assert 2 <= len(whole) < 6
    assert run("--csv", csv, "--out", out)[0] == 0
    after = times(out)
    assert len(after) == len(rows(out / "train.csv")) == 6
    assert all(after[name] == before[name] for name in whole)
    assert not temporaries(out)


def test_an_unfinished_line_of_the_journal_is_dropped(run, data, tmp_path):
    out, command = tmp_path / "out", ["--csv", data / "train.csv", "--out", tmp_path / "out"]
    run(*command)
    journal = out / "prepared.jsonl"
    whole = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(whole[:-1]) + whole[-1][:-9])
    before = times(out)
    assert run(*command)[0] == 0
    lost = json.loads(whole[-1])["target"]
    assert [name for name, when in times(out).items() if before[name] != when] == [lost]
    assert len(journal.read_text().splitlines()) == len(whole)


# Bad videos, and videos that kill.


def test_a_bad_video_is_left_out_and_reported(run, data, tmp_path):
    out, command = tmp_path / "out", ["--csv", data / "train.csv", "--out", tmp_path / "out"]
    good = (data / "a.mp4").read_bytes()
    (data / "a.mp4").write_text("#EXTM3U\n#EXTINF:1,\nb.mp4\n")
    (data / "a.avi").unlink()
    status, said = run(*command)
    assert status == 1
    assert [label for _, label in rows(out / "train.csv")] == [1, 2, 0]
    reasons = dict(line.split("\t") for line in (out / "unreadable.txt").read_text().splitlines())
    assert set(reasons) == {str(data / "a.mp4"), str(data / "a.avi")}
    assert "is a playlist (HLS), not a video" in reasons[str(data / "a.mp4")]
    assert reasons[str(data / "a.avi")] == "cannot be opened: No such file or directory"
    assert "2 videos cannot be read" in said
    assert f"{data / 'a.mp4'}: {reasons[str(data / 'a.mp4')]}" in said
    (data / "a.mp4").write_bytes(good)
    write_video(data / "a.avi", noise(4))
    assert run(*command)[0] == 0
    assert not (out / "unreadable.txt").exists()
    assert len(rows(out / "train.csv")) == 5


def test_a_wrong_prefix_stops_at_once(run, tmp_path):
    (tmp_path / "train.csv").write_text("".join(f"{n}.mp4 0\n" for n in range(500)))
    status, said = run("--csv", tmp_path / "train.csv", "--out", tmp_path / "out", "--workers", 2)
    assert status == 2
    assert "none of" in said
    assert "No such file" in said
    assert "--prefix" in said


@pytest.mark.parametrize("kills", [1, 2])
def test_a_killed_worker_is_survived(tmp_path, kills):
    csv, out = lasting(tmp_path / "data", 1), tmp_path / "out"
    write_video(tmp_path / "data/short.mp4", noise(4))
    csv.write_text("0.mp4 0\nshort.mp4 1\n")
    with (tmp_path / "said").open("w") as said:
        process = start("--csv", csv, "--out", out, "--workers", 1, stdout=said)
    killed = set[int]()
    for _ in range(kills):
        found = wait_for(
            lambda: [pid for pid in writers(out / "videos/0.mp4.mp4.tmp") if pid not in killed]
        )
        killed.add(found[0])
        os.kill(found[0], signal.SIGKILL)
    assert process.communicate(timeout=LIMIT) is not None
    assert process.returncode == kills - 1
    short, long = ("videos/short.mp4.mp4", 1), ("videos/0.mp4.mp4", 0)
    assert rows(out / "train.csv") == ([long, short] if kills == 1 else [short])
    assert ("0.mp4: kills the process" in (tmp_path / "said").read_text()) == (kills == 2)
    assert not temporaries(out)


# The disk.


def test_what_does_not_fit_is_refused_before_the_disk_is_full(run, tmp_path, monkeypatch):
    folder, out = tmp_path / "data", tmp_path / "out"
    for number in range(20):
        write_video(folder / f"{number}.mp4", noise(4, seed=number))
    (folder / "train.csv").write_text("".join(f"{n}.mp4 0\n" for n in range(20)))
    usage = namedtuple("usage", "total used free")
    free = {"bytes": 10}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, free["bytes"]))
    command = ["--csv", folder / "train.csv", "--out", out, "--workers", 2]
    status, said = run(*command)
    assert status == 2
    assert "the other" in said
    assert "missing on the disk" in said
    assert len(times(out)) == 8
    assert not temporaries(out)
    before, free["bytes"] = times(out), 10**9
    status, said = run(*command)
    assert (status, "1.00 GB are free" in said) == (0, True)
    assert times(out).items() >= before.items()
    assert len(rows(out / "train.csv")) == 20


def test_a_full_disk_loses_nothing(run, data, tmp_path):
    """A limit on the size of files stands for the end of the disk: writing fails in the middle."""
    write_video(data / "big.mp4", noise(20, 320, 256))
    (data / "train.csv").write_text("a.mp4 0\na.avi 1\nbig.mp4 2\nwith space/c d.mkv 3\n")
    out, limit = tmp_path / "out", 40_000
    command = ["--csv", data / "train.csv", "--out", out, "--workers", 1]
    process = start(
        *command,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    said = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 2
    assert "no room is left" in said
    assert "the same command continues" in said
    assert not temporaries(out)
    assert not (out / "train.csv").exists()
    before = times(out)
    assert entries(out) == len(before)
    assert run(*command)[0] == 0
    assert times(out).items() >= before.items()
    assert len(rows(out / "train.csv")) == 4


# What is refused.


def test_other_settings_and_other_lists_are_refused(run, data, tmp_path):
    out = tmp_path / "out"
    run("--csv", data / "val.csv", "--out", out)
    before = times(out)
    status, said = run("--csv", data / "val.csv", "--out", out, "--short-side", 128)
    assert (status, "short_side 256 (now 128)" in said) == (2, True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/val.csv").write_text(f"{data / 'a.mp4'} 0\n")
    status, said = run("--csv", tmp_path / "other/val.csv", "--out", out)
    assert (status, f"made from {data / 'val.csv'}" in said) == (2, True)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/val.csv").write_text("mine 0\n")
    status, said = run("--csv", data / "val.csv", "--out", tmp_path / "foreign")
    assert (status, "was not made here" in said) == (2, True)
    assert (tmp_path / "foreign/val.csv").read_text() == "mine 0\n"
    assert times(out) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--csv", "data/train.csv"], "--csv needs --out"),
        (["--csv", "data/nothing.csv", "--out", "out"], "nothing.csv: no such file"),
        (["--csv", "data/train.csv", "--csv", "data/train.csv", "--out", "out"], "two lists"),
        (["--csv", "data/train.csv", "--out", "out", "--workers", "0"], "give 1 or more"),
        (["--csv", "data/train.csv", "--out", "out", "--short-side", "2"], "--short-side is 2"),
        (["--csv", "data/train.csv", "--out", "out", "--val-fraction", "0.5"], "no effect"),
        (["--folder", "data", "--workers", "2"], "--workers has no effect"),
        (["--folder", "data", "--out", "data/out"], "the data set itself lies there"),
    ],
)
def test_mistakes_are_named(run, data, tmp_path, monkeypatch, args, message):
    if "--folder" in args:
        shutil.rmtree(data / "deep")
        shutil.copy(data / "a.mp4", data / "żółw")
    monkeypatch.chdir(tmp_path)
    status, said = run(*args)
    assert status == 2
    assert message in said
    assert not (tmp_path / "out/videos").exists()


# Folders named after classes.


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    folder = tmp_path / "classes"
    for name, count in {"sit down": 12, "żółw": 3, "jump": 2, "once": 1}.items():
        for number in range(count):
            path = folder / name / f"{number}.{'AVI' if number == 1 else 'mp4'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    (folder / "jump/notes.txt").write_text("")
    (folder / "jump/.hidden.mp4").write_text("")
    return folder


def test_lists_are_made_of_folders(run, classes):
    (classes / "jump/old").mkdir()
    status, said = run("--folder", classes)
    assert (status, "MODEL.NUM_CLASSES 4" in said) == (0, True)
    assert "1 files are no videos, the first" in said
    assert "1 folders inside the folders of classes are not looked into" in said
    numbers = json.loads((classes / "classes.json").read_text(encoding="utf-8"))
    assert numbers == {"jump": 0, "once": 1, "sit down": 2, "żółw": 3}
    train, val, test = (rows(classes / f"{split}.csv") for split in ("train", "val", "test"))
    assert val == test
    assert [sum(label == n for _, label in val) for n in range(4)] == [1, 0, 1, 1]
    assert [sum(label == n for _, label in train) for n in range(4)] == [1, 1, 11, 2]
    assert not {name for name, _ in train} & {name for name, _ in val}
    for name, label in train + val:
        assert (classes / name).is_file()
        assert numbers[name.split("/")[0]] == label


def test_more_videos_leave_the_split_much_as_it_was(run, classes):
    run("--folder", classes, "--val-fraction", 0.5)
    before = {name for name, _ in rows(classes / "val.csv")}
    assert run("--folder", classes, "--val-fraction", 0.5)[0] == 0
    assert {name for name, _ in rows(classes / "val.csv")} == before
    (classes / "sit down/new.mp4").write_bytes(b"")
    status, said = run("--folder", classes, "--val-fraction", 0.5)
    assert (status, "says something else" in said) == (2, True)
    assert {name for name, _ in rows(classes / "val.csv")} == before
    for split in ("train", "val", "test"):
        (classes / f"{split}.csv").unlink()
    assert run("--folder", classes, "--val-fraction", 0.5)[0] == 0
    assert len({name for name, _ in rows(classes / "val.csv")} ^ before) <= 2


def test_a_split_that_is_given_is_kept(run, tmp_path):
    for name in ("train/a/1.mp4", "train/b/2.webm", "val/b/3.mp4"):
        write = tmp_path / "set" / name
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_bytes(b"")
    status, said = run("--folder", tmp_path / "set", "--val-fraction", 0.2)
    assert (status, "is split already" in said) == (2, True)
    assert run("--folder", tmp_path / "set")[0] == 0
    assert rows(tmp_path / "set/train.csv") == [("train/a/1.mp4", 0), ("train/b/2.webm", 1)]
    assert rows(tmp_path / "set/val.csv") == [("val/b/3.mp4", 1)]
    assert rows(tmp_path / "set/test.csv") == [("val/b/3.mp4", 1)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (None, "no such folder"),
        (["1.mp4"], "one for each class"),
        (["train/a/1.mp4", "val/b/1.mp4"], "b: train/ has no class of this name"),
        (["train/a/1.mp4"], "holds train alone"),
        (["a/1.mp4", "b/1.mp4"], "none can be set aside"),
        (["a/1\n.mp4", "a/2.mp4"], "cannot express this name"),
    ],
)
def test_folders_that_do_not_serve_are_named(run, tmp_path, names, message):
    for name in names or []:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"")
    status, said = run("--folder", tmp_path / "set")
    assert status == 2
    assert message in said
    assert not list((tmp_path / "set").glob("*.csv"))


def test_folders_are_prepared(run, tmp_path):
    for number, name in enumerate(("b/x.mp4", "b/y.avi", "ä/x.mp4", "ä/y.mp4")):
        write_video(tmp_path / "set" / name, noise(4, seed=number))
    out = tmp_path / "out"
    assert run("--folder", tmp_path / "set", "--out", out)[0] == 0
    assert json.loads((out / "classes.json").read_text(encoding="utf-8")) == {"b": 0, "ä": 1}
    assert len(times(out)) == 4
    assert sorted(label for _, label in rows(out / "train.csv")) == [0, 1]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["b", "ä"]
    (tmp_path / "set/a").mkdir()
    write_video(tmp_path / "set/a/x.mp4", noise(4))
    status, said = run("--folder", tmp_path / "set", "--out", out)
    assert (status, "classes.json exists" in said) == (2, True)
