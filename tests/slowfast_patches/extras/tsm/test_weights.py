"""Weight files of the authors of TSM."""

import copy
import logging
import re
from pathlib import Path

import pytest
import torch

from slowfast_patches.models.weights import load_weights
from tests.slowfast_patches.models.test_weights import WIDTH, made, resnet, same_tensors, saved


def tsm_file(folder: Path, every: int = 1) -> Path:
    """Save a file as their training does, in which every `every`-th block of a stage shifts."""
    state = {}
    for name, value in resnet().items():
        block = re.fullmatch(r"(layer\d\.(\d+)\.conv1)\.weight", name)
        shifts = block is not None and int(block[2]) % every == 0
        new = f"{block[1]}.net.weight" if block and shifts else name
        state[f"module.base_model.{new}"] = value
    head = {"weight": torch.rand(4, 32 * WIDTH), "bias": torch.rand(4)}
    del state["module.base_model.fc.weight"], state["module.base_model.fc.bias"]
    state |= {f"module.new_fc.{name}": value for name, value in head.items()}
    return saved({"epoch": 50, "arch": "resnet50", "best_prec1": 70.6, "state_dict": state}, folder)


def test_a_model_of_tsms_authors_is_taken_whole(tmp_path: Path):
    model = made("tsm")
    before = copy.deepcopy(model.state_dict())
    load_weights(model, tsm_file(tmp_path), complete=True)
    assert all("num_batches" in name for name in same_tensors(model, before))
    for part, theirs in {"a": "layer3.5.conv1.weight", "b": "layer3.5.conv2.weight"}.items():
        ours = model.state_dict()[f"s4.pathway0_res5.branch2.{part}.weight"]
        assert torch.equal(ours[:, :, 0], resnet()[theirs])


@pytest.mark.parametrize(
    ("every", "arch", "counts"),
    [
        (2, "tsm", "in 9 blocks, not in 16 blocks"),  # as in their ResNet-101
        (1, "c2d", "in 16 blocks, not in 0 blocks"),
    ],
)
def test_shifts_elsewhere_are_said_and_refused_for_a_test(every, arch, counts, caplog, tmp_path):
    model, path = made(arch), tsm_file(tmp_path, every)
    with pytest.raises(ValueError, match=f"not from this model: .*{counts}"):
        load_weights(model, path, complete=True)
    caplog.set_level(logging.INFO)
    load_weights(model, path)
    assert counts in caplog.text
    assert "267 tensors loaded" in caplog.text


# Checkpoints of PyTorch.
