"""The short form of faults.py: a kill -9 in the writing of a checkpoint, and of one rank of two,
which torchrun starts again by itself."""

import json
import subprocess
import sys
from pathlib import Path

KINDS = ("save", "rank")


def test_killed_trainings_end_as_if_undisturbed(tmp_path: Path):
    program, report = Path(__file__).with_name("faults.py"), tmp_path / "faults.json"
    command = [sys.executable, str(program), "--kills", "2", "--seed", "1", "--kinds", *KINDS]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "faults"), "--json", str(report)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    assert (result["kills"], result["recoveries"], result["wrong"]) == (2, 2, [])
    assert set(result["kinds"]) == set(KINDS)
