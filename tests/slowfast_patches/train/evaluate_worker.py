"""One process of the test of evaluation on several: `python evaluate_worker.py RANK WORLD FOLDER`.

Reads FOLDER/cases.pt, a list of (scores of all clips, labels by video, clips a video, ensemble),
where clips that cannot be read have scores that are not finite, scores this rank's share of the
clips, and writes the metrics of each case to FOLDER/rank{RANK}.pt.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.train.evaluate import VideoScores
from slowfast_patches.utils.distributed import from_main

__all__ = ["main"]


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    metrics = [_evaluate(rank, size, *case) for case in torch.load(folder / "cases.pt")]
    _check_sharing(rank)
    torch.save(metrics, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def _check_sharing(rank: int) -> None:
    """What the main process has reaches all, and no group stays for it."""
    groups = len(distributed_c10d._world.pg_map)
    for number in range(10):
        tree = {"a": torch.full((300_000,), number), "b": [torch.empty(0), number, rank]}
        got = from_main(lambda made=tree: made)
        assert bool((got["a"] == number).all())
        assert (len(got["b"][0]), *got["b"][1:]) == (0, number, 0)
    assert len(distributed_c10d._world.pg_map) == groups


class _Dataset(list):
    """One item for each clip, and the videos that they are of."""

    videos: Tensor


def _evaluate(
    rank: int, size: int, rows: Tensor, labels: Tensor, clips: int, ensemble: str
) -> dict[str, float]:
    keys = {"MODEL.NUM_CLASSES": rows.shape[1], "DATA.MULTI_LABEL": labels.ndim == 2}
    keys |= {"DATA.ENSEMBLE_METHOD": ensemble, "DATA.MAX_BAD_FRACTION": 1.0}
    dataset = _Dataset(range(len(rows)))
    dataset.videos = labels
    scores = VideoScores(default_recipe().replaced(keys), dataset, torch.device("cpu"))
    for own in torch.arange(len(rows))[rank::size].split(2):
        read = own[rows[own].isfinite().all(1)]
        scores.add(read // clips, rows[read], labels[read // clips])
    return scores.result().metrics


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
