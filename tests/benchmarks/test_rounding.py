"""The comparison of trainings counts bits, and relative differences are worked out by hand."""

import json
from pathlib import Path

import pytest
import rounding
import torch


def write(folder: Path, weight: float, momentum: float, losses: list[float]) -> Path:
    """Write the output folder of a training with a weight (3, ...) and a momentum."""
    (folder / "checkpoints").mkdir(parents=True)
    state = {"w": torch.tensor([3.0, weight]), "steps": torch.tensor(1000)}
    content = {"model_state": state, "optimizer_state": {"state": {0: torch.tensor(momentum)}}}
    for iteration in (1, 2):
        name = f"checkpoint_iter_{iteration:08d}.pyth"
        torch.save(content, folder / "checkpoints" / name)
    text = "".join(json.dumps({"type": "train", "loss": loss}) + "\n" for loss in losses)
    (folder / "metrics.jsonl").write_text(text + json.dumps({"type": "val", "top1": 1}) + "\n")
    (folder / "result.json").write_text(json.dumps({"top1": 25.0}))
    return folder


def test_a_training_is_compared_with_another(tmp_path):
    first = write(tmp_path / "first", 4.0, 7.0, [2.0, 1.0])
    same = rounding.compare("again", first, first)
    assert same["end"] == {"differ": 0, "tensors": 3, "text": "0 of 3", "weights": 0.0}
    found = rounding.compare("x", write(tmp_path / "x", 4.5, 7.1, [2.0, 1.25]), first)
    assert found["end"]["text"] == "2 of 3"
    assert found["end"]["weights"] == pytest.approx(0.1)
    assert found["loss"] == {"first": 0.0, "largest": 0.25}
    assert (found["iterations"], found["top1"]) == (2, 25.0)


def test_each_variant_has_the_same_clips_in_whole_bn_groups():
    size = rounding.KEYS[rounding.KEYS.index("MULTIGRID.BN_BASE_SIZE") + 1]
    for variant in rounding.VARIANTS:
        assert rounding.CLIPS % (variant.processes * size) == 0
