"""run_net that writes down which training clips it was asked for, and that stops when told to.

    python elastic_worker.py NOTES STOP_AT RUN_NET OPTIONS...

Each process appends "iteration video epoch" lines to NOTES.rank. The last one gets a SIGTERM when
it is asked for the mini-batch of iteration STOP_AT.
"""

import os
import runpy
import signal
import sys
from collections.abc import Sequence

from multigrid import ClipRequest
from slowfast_patches.datasets.clips import ClipDataset

PRECISE_BN = 1 << 30
"""Epochs from here on are no epochs of training."""


def main() -> None:
    notes, stop_at, *sys.argv = sys.argv[1:]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    read = ClipDataset.__getitems__

    def noting(dataset: ClipDataset, requests: Sequence[ClipRequest | int]) -> object:
        clips = [r for r in requests if isinstance(r, ClipRequest) and r.epoch < PRECISE_BN]
        with open(f"{notes}.{rank}", "a") as file:
            file.writelines(f"{c.iteration} {c.video} {c.epoch}\n" for c in clips)
        if rank == size - 1 and clips and clips[0].iteration == int(stop_at):
            os.kill(os.getpid(), signal.SIGTERM)
        return read(dataset, requests)

    ClipDataset.__getitems__ = noting
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
