"""Classes are weighted by their numbers of videos in the list, also if mini-batches are changed."""

import pytest
import torch

from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.seams import BATCH_TRANSFORMS
from slowfast_patches.train.build_trainer import build_trainer
from slowfast_patches.train.dry_run import made_up_batch
from tests.conftest import switched_on
from tests.slowfast_patches.train.conftest import ALONE


def test_a_run_has_the_weights_of_its_list(tiny_config, tiny_data, tmp_path):
    """Of 3 videos of each of 8 classes, remove those of classes 3 to 7, except two of class 3."""
    lines = (tiny_data / "train.csv").read_text().splitlines()
    few = [line for line in lines if int(line.split()[-1]) < 3]
    few += [line for line in lines if line.endswith(" 3")][:2]
    for name in ("train", "val"):
        (tmp_path / f"{name}.csv").write_text("\n".join(few) + "\n")
    data = ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", tiny_data)
    keys = ("SOLVER.CLASS_WEIGHTS", "balanced", *switched_on(BATCH_TRANSFORMS))
    recipe = tiny_config(tmp_path / "run", *keys, *data)
    trainer = build_trainer(recipe, ALONE, StopRequest(ALONE))
    # 1/3, 1/3, 1/3 and 1/2 of 11 videos have a mean of 4/11.
    expected = [11 / 12] * 3 + [11 / 8] + [11 / 4] * 4
    assert trainer.stepper._loss_function.weight.tolist() == pytest.approx(expected)
    step = trainer.schedule.at(0)
    batch = made_up_batch(recipe, step.shape.batch, step.shape)
    assert torch.isfinite(trainer.stepper.forward_backward(step, batch).loss)
