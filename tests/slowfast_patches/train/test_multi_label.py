"""A whole run on videos of several labels: what is trained, and what is said of it where."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from multigrid import ClipRequest
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import DATASETS, DataSet
from slowfast_patches.train import run as run_module

CLASSES = 8

OPTIONS = (
    *("TRAIN.DATASET", "several", "TEST.DATASET", "several", "DATA.MULTI_LABEL", True),
    *("DATA.ENSEMBLE_METHOD", "max"),
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "MODEL.DROPOUT_RATE", 0.0),
    *("TRAIN.EVAL_PERIOD", 1, "SOLVER.WARMUP_EPOCHS", 0.0),
    *("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1], "SOLVER.BASE_LR", 0.1),
)
"""Two epochs of 6 iterations."""


class Several(torch.utils.data.Dataset):
    """A user's own data set, of clips of noise; each video has a class and the one after it."""

    def __init__(self, recipe: Recipe, split: str) -> None:
        self.videos = range(24 if split == "train" else 8)
        self._views = recipe.test.num_ensemble_views if split == "test" else 1
        self._shape = recipe.base_shape

    def __len__(self) -> int:
        return len(self.videos) * self._views

    def __getitems__(self, requests: Sequence[ClipRequest | int]) -> dict:
        first = requests[0]
        shape = first.shape if isinstance(first, ClipRequest) else self._shape
        numbers = [r.video if isinstance(r, ClipRequest) else r // self._views for r in requests]
        videos, size = torch.tensor(numbers), (shape.frames, shape.crop, shape.crop, 3)
        labels = torch.zeros(len(videos), CLASSES)
        for offset in (0, 1):
            labels[range(len(videos)), (videos + offset) % CLASSES] = 1
        noise = [torch.Generator().manual_seed(number) for number in numbers]
        return {
            "clips": torch.stack([torch.randint(256, size, generator=g) for g in noise]).byte(),
            "labels": labels,
            "flips": torch.zeros(len(videos), dtype=torch.bool),
            "iteration": getattr(first, "iteration", -1),
            "failures": [],
            "videos": videos,
        }


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "several", DataSet(task="multi_label", build=Several))
        patch.setattr(run_module, "_count_videos", lambda recipe, split, reports: 24)
        yield


def test_losses_and_metrics_are_those_of_several_labels(
    train: Callable[..., Path], tmp_path: Path, opened: type
):
    folder = opened(train(tmp_path / "run", *OPTIONS))
    records, evaluations, result = folder.metrics(), folder.metrics("val"), folder.result
    assert len(records) == 12
    # Logits near 0 say 1/2 of each class; two classes of eight are right.
    assert records[0]["loss"] == pytest.approx(math.log(2), abs=0.02)
    rate = 2 / CLASSES
    assert records[-1]["loss"] < 0.03 - rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert not any("top1" in record for record in records)
    assert "top-" not in folder.log
    assert [{"type": "val", **e} for e in result["evaluations"]] == evaluations
    assert all(0 < e["map"] <= 100 for e in evaluations)
    told = re.findall(r"validation after iteration (\d+) \(.*\): mAP ([\d.]+)\n", folder.log)
    assert told == [(str(e["iteration"]), f"{e['map']:.2f}") for e in evaluations]
    assert (result["metric"], result.keys() & {"top1", "top5"}) == ("map", set())
    assert f"test on 2 views × 1 crops: mAP {result['map']:.2f}\n" in folder.log
