"""Which words of the command line of multigrid-predict are videos, and which are keys."""

from pathlib import Path

import pytest

from tests.slowfast_patches.datasets.made_videos import write_jpeg


@pytest.fixture
def tool(load_program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return load_program("tools/predict.py")


@pytest.mark.parametrize(
    ("words", "videos", "overrides"),
    [
        # Ids of YouTube may begin with a dash. The first is there, the second is not.
        (["-3DuSJY.mp4", "a.mp4"], ["-3DuSJY.mp4", "a.mp4"], []),
        (["a.mp4", "-QTE2ndKJ.webm"], ["a.mp4", "-QTE2ndKJ.webm"], []),
        (["-frames"], ["-frames"], []),
        (["a.mp4", "TESTS.X", "3"], ["a.mp4"], ["TESTS.X", "3"]),
        (["a.mp4", "TESTS.X=3"], ["a.mp4"], ["TESTS.X", "3"]),
        (["A.B", "NUM_GPUS", "0"], ["A.B"], ["NUM_GPUS", "0"]),
    ],
)
def test_videos_and_keys_are_told_apart(tool, tmp_path, words, videos, overrides):
    for name in ("-3DuSJY.mp4", "A.B"):
        (tmp_path / name).touch()
    (tmp_path / "-frames").mkdir()
    args = tool.parse_args(["--checkpoint", "c", *words, "--top", "1"])
    assert (args.videos, args.overrides, args.top) == (videos, overrides, 1)


def test_of_a_folder_with_videos_and_pictures_the_videos_are_predicted(tool, tmp_path, capsys):
    folder = tmp_path / "films"
    write_jpeg(folder / "folder.jpg")
    assert tool.videos_at(str(folder)) == [str(folder)]
    for name in ("b.mp4", "a.mkv", ".c.mp4"):
        (folder / name).touch()
    expected = [str(folder / "a.mkv"), str(folder / "b.mp4")]
    assert tool.videos_at(str(folder)) == expected
    assert capsys.readouterr().err == ""  # a cover is no video
    (folder / "folder.jpg").unlink()
    write_jpeg(folder / "1.jpg")
    write_jpeg(folder / "2.jpg")
    assert tool.videos_at(str(folder)) == expected
    assert "also contains 2 pictures, which are not predicted" in capsys.readouterr().err
    assert tool.videos_at("none.mp4") == ["none.mp4"]


def test_an_option_is_not_taken_for_a_video(tool, tmp_path):
    (tmp_path / "--top").touch()
    args = tool.parse_args(["--checkpoint", "c", "a.mp4", "--top", "3"])
    assert (args.videos, args.top) == (["a.mp4"], 3)
    assert Path("--top").exists()
