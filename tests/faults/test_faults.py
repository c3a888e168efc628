"""A training that is killed (-9) at every place and continued ends as if undisturbed, bit for bit.

    TRAININGS=10 python -m pytest tests/faults

This command tests ten trainings, each with other moments and another order of the kills. The
default is one training. kills.py runs for an hour, with other kinds of trainings.
"""

import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from slowfast_patches.train.checkpoint import last_checkpoint
from tests.conftest import Folder, assert_same_run
from tests.faults.kills import find_difference

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
    assert find_difference(same, multigrid_run) == ""
    path = last_checkpoint(same)
    content = torch.load(path, weights_only=True)
    name, weight = next(iter(content["model_state"].items()))
    weight.view(torch.int32).flatten()[0] ^= 1
    torch.save(content, path)
    assert f".model_state.{name}" in find_difference(same, multigrid_run)
