"""Each process has a log file of its own; the terminal is rank 0's."""

import logging
import re
import warnings
from pathlib import Path

import torch

from slowfast_patches.train.record.log import setup_logging
from slowfast_patches.utils.distributed import World
from tests.conftest import kept_logging


def say(folder: Path, rank: int, text: str) -> None:
    with kept_logging():
        setup_logging(str(folder), World(rank, 16, torch.device("cpu")))
        logging.getLogger("a").info("%s", text)
        logging.getLogger("a").warning("%s!", text)


def test_rank_0_writes_to_the_terminal_and_the_others_to_files_alone(tmp_path, capsys):
    for rank in (0, 1, 12, 1):
        say(tmp_path, rank, f"of {rank}")
    said = capsys.readouterr().err
    assert "of 0\n" in said
    assert "of 1" not in said
    assert sorted(path.name for path in tmp_path.rglob("*.log")) == [
        *("rank_0001.log", "rank_0012.log", "train.log")
    ]
    kept = (tmp_path / "logs" / "rank_0001.log").read_text()
    assert kept.count("INFO of 1\n") == 2, "a restart goes on"


def test_control_characters_of_names_are_logged_escaped(tmp_path, capsys):
    say(tmp_path, 0, "\x1b[2J\a.mp4")
    said = capsys.readouterr().err
    for text in (said, (tmp_path / "train.log").read_text()):
        assert [line.split(" ", 1)[1] for line in text.splitlines()] == [
            r"INFO \x1b[2J\x07.mp4",
            r"WARNING \x1b[2J\x07.mp4!",
        ]


def test_warnings_of_libraries_and_the_time_are_in_the_log(tmp_path):
    folder = tmp_path / "a" / "b"
    with kept_logging():
        setup_logging(str(folder), World(0, 1, torch.device("cpu")))
        warnings.warn("an old function", UserWarning, stacklevel=1)
    (line,) = (s for s in (folder / "train.log").read_text().splitlines() if "WARNING" in s)
    assert re.match(r"\d\d:\d\d:\d\d WARNING .*UserWarning: an old function", line)


def test_a_machine_that_cannot_write_warns_on_its_terminal(tmp_path, capsys):
    (tmp_path / "logs").touch()  # where the folder would be
    say(tmp_path, 8, "of 8")
    assert "of 8!" in capsys.readouterr().err
