"""A training that is killed (-9) and continued ends as if undisturbed, bit for bit.

    TRAININGS=10 python -m pytest tests/faults

This command tests ten trainings, each with other moments and another order of the kills. The
default is one training. kills.py runs for an hour, with other kinds of trainings on one to three
processes.
"""

import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from slowfast_patches.train.checkpoint import last_checkpoint
from tests.conftest import Folder, assert_same_run
from tests.faults import kills
from tests.faults.mutate import changes, is_noticed

MOST = {"step": 4, "worker": 6, "save": 2, "rename": 6, "evaluation": 2}
"""Places of faulty_run_net.py, and the calls that a process certainly comes to."""


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRAININGS", 1))))
def test_a_killed_training_ends_as_if_undisturbed(seed, start_run_net, multigrid_run, tmp_path):
    program = Path(__file__).with_name("faulty_run_net.py")
    keys = ("DATA_LOADER.NUM_WORKERS", 1, "TRAIN.CHECKPOINT_PERIOD", 1)
    rng = random.Random(seed)
    for place in [*rng.sample(sorted(MOST), len(MOST)), "none"]:
        fault = f"{place}:{rng.randint(1, MOST.get(place, 1))}"
        process = start_run_net(tmp_path, *keys, program=program, FAULT=fault, ONE_BLOCK="1")
        said = process.communicate(timeout=240)[1]
        # Who loses a worker says so; after the last fault there is nothing more to say.
        assert process.returncode == {"worker": 2, "none": 0}.get(place, -9), (fault, said)
        # None but of Python's own thread that hands memory over, where its peer was killed, and of
        # torch's import of a profiler at the first step, where the loss of a worker interrupts it.
        foreign = said.count("in _serve") + said.count("in _maybe_cupti_monitor")
        assert said.count("Traceback") == foreign, said
    assert_same_run(Folder(tmp_path), Folder(multigrid_run))
    left = [path.name for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".damaged")]
    assert left == []


def test_the_comparison_of_kills_notices_a_single_bit(multigrid_run, tmp_path):
    same = tmp_path / "same"
    shutil.copytree(multigrid_run, same)
    assert kills.find_difference(same, multigrid_run) == ""
    path = last_checkpoint(same)
    content = torch.load(path, weights_only=True)
    name, weight = next(iter(content["model_state"].items()))
    weight.view(torch.int32).flatten()[0] ^= 1
    torch.save(content, path)
    assert f".model_state.{name}" in kills.find_difference(same, multigrid_run)


@pytest.mark.slow
def test_three_killed_processes_end_as_if_undisturbed(start_python, tiny_data, tmp_path):
    """Three numbers have several sums, which differ by rounding. Groups of BN add them, too."""
    (tmp_path / "data").symlink_to(tiny_data)
    (tmp_path / "tiny.yaml").symlink_to(tiny_data / "tiny.yaml")
    kind = kills.Kind("shared BN", 3)
    keys = ("SOLVER.MAX_EPOCH", 2.0, "SOLVER.STEPS", [0, 1.5], "BN.USE_PRECISE_STATS", False)
    keys += ("DATA_LOADER.NUM_WORKERS", 0, "TEST.NUM_ENSEMBLE_VIEWS", 1)
    for name, fault, status in (
        ("whole", "none:0", 0),
        ("killed", "step:4", -9),
        ("killed", "none:0", 0),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        processes = kills.start(start_python, tmp_path / name, kind, *keys, FAULT=fault)
        said = (tmp_path / name / "said.txt").read_text
        assert [process.wait(240) for process in processes] == [status] * 3, said()
    assert kills.find_difference(tmp_path / "killed" / "out", tmp_path / "whole" / "out") == ""


def test_the_changes_of_a_file_are_one_place_each_and_compile(tmp_path):
    """Worked out by hand: a comparison, its number, a raise, a returned value, and its `not`."""
    source = '''"""A module."""
LIMIT = 3


def check(value: int = 4) -> bool:
    """Return whether a value is small."""
    if value < 0:
        raise ValueError(f"{value + 1} is below {0}")
    return not value
'''
    (tmp_path / "module.py").write_text(source)
    made = list(changes(tmp_path, Path("module.py")))
    assert [(change.line, change.new) for change in made] == [
        (7, "(value <= 0)"),
        (7, "1"),
        (8, "pass"),
        (9, "return None"),
        (9, "(value)"),
    ]
    for change in made:
        compile(change.content, "module.py", "exec")
        assert change.content != source


def test_a_change_is_noticed_by_the_tests_of_its_module_only_if_one_fails(tmp_path):
    folder = tmp_path / "tests" / "slowfast_patches" / "utils"
    folder.mkdir(parents=True)
    (tmp_path / "slowfast_patches" / "utils").mkdir(parents=True)
    path = Path("slowfast_patches/utils/sums.py")
    (tmp_path / path).write_text("def total(a, b):\n    return a + b\n")
    name = "slowfast_patches.utils.sums"
    (folder / "test_sums.py").write_text(
        f"import importlib.util, pathlib\n# {name}\n"
        f"spec = importlib.util.spec_from_file_location('sums', {str(tmp_path / path)!r})\n"
        "sums = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(sums)\n"
        "def test_total():\n    assert sums.total(2, 2) == 4\n"
    )
    (change,) = (c for c in changes(tmp_path, path) if "-" in c.new)
    assert is_noticed(tmp_path, change, "not gpu", 60)
    (folder / "test_sums.py").write_text(f"# {name}\ndef test_nothing():\n    pass\n")
    assert not is_noticed(tmp_path, change, "not gpu", 60)
