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
from tests.faults.changes import Change, changes
from tests.faults.forks import Trace
from tests.faults.mutate import judge

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


@pytest.fixture
def start_kind(start_python, tiny_data, tmp_path):
    """`start_kind(kind, name, KEY=value, ...)`: the processes of a training, in a folder."""
    (tmp_path / "data").symlink_to(tiny_data)
    (tmp_path / "tiny.yaml").symlink_to(tiny_data / "tiny.yaml")
    keys = ("SOLVER.MAX_EPOCH", 2.0, "SOLVER.STEPS", [0, 1.5], "BN.USE_PRECISE_STATS", False)
    keys += ("DATA_LOADER.NUM_WORKERS", 0, "TEST.NUM_ENSEMBLE_VIEWS", 1)

    def start(kind, name, **environment):
        (tmp_path / name).mkdir(exist_ok=True)
        return kills.start(start_python, tmp_path / name, kind, *keys, **environment)

    return start


@pytest.mark.slow("starts processes")
def test_three_killed_processes_end_as_if_undisturbed(start_kind, tmp_path):
    """Three numbers have several sums, which differ by rounding. Groups of BN add them, too."""
    kind = kills.Kind("shared BN", 3)
    for name, fault, status in (
        ("whole", "none:0", 0),
        ("killed", "step:4", -9),
        ("killed", "none:0", 0),
    ):
        processes = start_kind(kind, name, FAULT=fault)
        said = (tmp_path / name / "said.txt").read_text
        assert [process.wait(240) for process in processes] == [status] * 3, said()
    assert kills.find_difference(tmp_path / "killed" / "out", tmp_path / "whole" / "out") == ""


@pytest.mark.slow("starts processes")
@pytest.mark.parametrize("seed", range(int(os.environ.get("TRAININGS", 1))))
def test_two_processes_of_which_one_is_killed_end_as_if_undisturbed(seed, start_kind, tmp_path):
    """The other process ends by itself, and says that it lost one. Rank 0 alone writes."""
    kind = kills.Kind("plain", 2)
    assert [process.wait(240) for process in start_kind(kind, "whole")] == [0, 0]
    rng = random.Random(seed)
    said = tmp_path / "killed" / "said.txt"
    for place in rng.sample(["step", "save", "rename", "evaluation"], 3):
        faulty = 0 if place in ("save", "rename") else rng.randrange(2)
        fault = f"{place}:{rng.randint(1, MOST[place])}"
        processes = start_kind(kind, "killed", FAULT=fault, FAULTY_RANK=str(faulty))
        statuses = [process.wait(240) for process in processes]
        assert statuses[faulty] == -9, (fault, said.read_text())
        assert statuses[1 - faulty] == 2, (fault, said.read_text())
        assert f"error: rank {1 - faulty}: Another rank failed" in said.read_text()
        said.unlink()
    assert [process.wait(240) for process in start_kind(kind, "killed")] == [0, 0], said.read_text()
    assert kills.find_difference(tmp_path / "killed" / "out", tmp_path / "whole" / "out") == ""


def test_the_changes_of_a_file_are_one_place_each_and_compile(tmp_path):
    """Worked out by hand: a condition, its comparison, its number, a raise, a value, its `not`."""
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
    assert [(change.lines[0], change.new) for change in made] == [
        (7, "(not (value < 0))"),
        (7, "(value <= 0)"),
        (7, "1"),
        (8, "pass"),
        (9, "return None"),
        (9, "(value)"),
    ]
    for change in made:
        compile(change.content, "module.py", "exec")
        assert change.content != source


SUMS = """
import importlib.util
spec = importlib.util.spec_from_file_location("sums", FILE)
sums = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sums)

def test_total():
    assert sums.total(2, 2) == 4

def test_twice():
    if sums.total(0, 1) != 1:
        raise ArithmeticError

def test_constant():
    assert sums.constant == 3
"""


@pytest.fixture
def judged(tmp_path):
    """`judged(tests, seconds)`: the test that notices each change of a module of two lines.

    The change is by its new text. `seconds` are the times of the tests known to execute the lines.
    """
    folder = tmp_path / "tests" / "slowfast_patches" / "utils"
    folder.mkdir(parents=True)
    path = Path("slowfast_patches/utils/sums.py")
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("def total(a, b):\n    return a + b\n\n\nconstant = total(1, 2)\n")
    file = folder / "test_sums.py"
    made = list(changes(tmp_path, path))

    def judge_all(tests, seconds, quick=False):
        file.write_text(
            f"# slowfast_patches.utils.sums\n{tests.replace('FILE', repr(str(tmp_path / path)))}"
        )
        ids = {f"{file.relative_to(tmp_path)}::{name}": each for name, each in seconds.items()}
        trace = Trace(seconds=ids, lines={str(path): {"2": sorted(ids)}})
        noticed = judge(tmp_path, made, "not gpu", trace, quick)
        return {c.new: test.rpartition("::")[2] for c, test in zip(made, noticed, strict=True)}

    return judge_all


def test_a_change_is_judged_by_the_tests_of_its_module_the_quickest_first():
    change = Change(Path("a.py"), range(2, 3), "x", "y", "")
    one, two, other = "test_a.py::test_one", "test_a.py::test_two", "test_b.py::test_other"
    seconds = {one: 2.0, two: 1.0, other: 0.1}
    lines = {"a.py": {"1": [], "2": [one, other, two]}}
    assert Trace(seconds, lines).tests_of(change) == [other, two, one]
    assert Trace(seconds, lines, judges={"a.py": ["test_a.py"]}).tests_of(change) == [two, one]


def test_the_quickest_test_that_fails_with_a_change_notices_it(judged):
    assert judged(SUMS, {"test_total": 2, "test_twice": 1}) == {
        "return None": "test_twice",
        "(a - b)": "test_twice",
    }


@pytest.mark.slow("runs all tests of a change")
def test_a_change_that_the_tests_of_its_lines_miss_may_be_noticed_by_others(judged):
    """What a module computes when it is imported is not computed again in a fork."""
    assert judged(SUMS, {"test_constant": 1}, quick=True)["(a - b)"] == ""
    assert judged(SUMS, {"test_constant": 1})["(a - b)"] != ""


@pytest.mark.slow("runs all tests of a change")
def test_a_change_survives_where_no_test_fails(judged):
    nothing = "def test_nothing():\n    pass\n"
    assert judged(nothing, {"test_nothing": 1}) == {"return None": "", "(a - b)": ""}
