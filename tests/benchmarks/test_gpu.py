"""Tests of benchmarks/gpu.py with commands that stand in for the measurements."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def gpu(load_program) -> ModuleType:
    return load_program("benchmarks/gpu.py")


def test_parts_without_a_result_run_and_the_others_are_skipped(gpu: ModuleType, tmp_path: Path):
    """The part `host` hands its switches to `schedule`, as the real ones do."""
    variants = {"variants": [{"name": "all", "keys": {"SOLVER.FUSED": True}}]}
    (tmp_path / "gpu_host.json").write_text(json.dumps(variants))
    parts = {
        "host": gpu.Part("Skipped?", ("false",)),
        "schedule": gpu.Part("Written?", ("cp /etc/hostname {result}", "echo {switches}")),
        "printed": gpu.Part("Printed?", ("echo 3 passed",)),
        "broken": gpu.Part("Broken?", ("false", "touch {result}")),
        "slow": gpu.Part("Slow?", ("sleep 60",)),
    }
    assert gpu.run_parts(parts, tmp_path, seconds=1) == 1
    made = sorted(path.stem for path in tmp_path.glob("*.json"))
    assert made == ["gpu_host", "gpu_printed", "gpu_schedule"]
    assert json.loads((tmp_path / "gpu_printed.json").read_text())["printed"] == ["3 passed"]
    table = (tmp_path / "gpu.md").read_text()
    assert "SOLVER.FUSED True" in table
    for state in ("done before", "done in", "failed with 1", "ran out of time"):
        assert state in table
    assert gpu.run_parts({"host": parts["host"]}, tmp_path) == 0


def test_the_real_parts_name_programs_that_exist(gpu: ModuleType):
    for part in gpu.PARTS.values():
        for command in part.commands:
            words = command.split()
            files = [
                word for word in words if word.startswith(("benchmarks/", "tools/", "configs/"))
            ]
            assert all((gpu.ROOT / file).is_file() for file in files)


GIVEN = {"python": "python", "result": "x.json", "switches": "TRAIN.TF32 True"}


def test_the_real_commands_are_accepted_by_step_time(gpu: ModuleType, load_program):
    """KEY VALUE pairs may follow the names of variants."""
    step_time = load_program("benchmarks/step_time.py")
    parts = gpu.PARTS.values()
    commands = [c.format_map(GIVEN).split() for part in parts for c in part.commands]
    own = [words for words in commands if "benchmarks/step_time.py" in words]
    assert len(own) >= 6
    for words in own:
        args = step_time.parse_args(words[words.index("benchmarks/step_time.py") + 1 :])
        assert {*args.variants} <= {*step_time.NAMES, "each"}
        assert all(key.isupper() for key in args.overrides[::2])
        assert ("NUM_GPUS" in words) == ("NUM_GPUS" in args.overrides)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_in_one_line(gpu: ModuleType, refused):
    assert "no GPU" in refused(gpu, [])
