"""run_net on some processes, as torchrun starts them; they note which clips they are asked for.

    python elastic_worker.py FOLDER PROCESSES STOP_AT RUN_NET OPTIONS...

They are forked from one process, which has imported everything: torchrun's take seconds each. Each
appends "iteration video epoch" lines to FOLDER/PROCESSES.rank. The last one gets a SIGTERM when it
is asked for the mini-batch of iteration STOP_AT. Prints their exit statuses.
"""

import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from multigrid import ClipRequest
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.train.run import run

PRECISE_BN = 1 << 30
"""Epochs from here on are no epochs of training."""


def note(path: Path, stop_at: int | None) -> None:
    """Watch what data sets are asked for in this process."""
    read = ClipDataset.__getitems__

    def noting(dataset: ClipDataset, requests: Sequence[ClipRequest | int]) -> object:
        clips = [r for r in requests if isinstance(r, ClipRequest) and r.epoch < PRECISE_BN]
        with path.open("a") as file:
            file.writelines(f"{c.iteration} {c.video} {c.epoch}\n" for c in clips)
        if clips and clips[0].iteration == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return read(dataset, requests)

    ClipDataset.__getitems__ = noting


def start(rank: int, size: int, port: int) -> int:
    """Run run_net in a new process; its number."""
    pid = os.fork()
    if pid:
        return pid
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(size))
    os.environ |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "elastic"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    folder, _, stop_at, *sys.argv = sys.argv[1:]
    note(Path(folder) / f"{size}.{rank}", int(stop_at) if rank == size - 1 else None)
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as done:
        status = int(done.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    assert callable(run), "imported for the processes to have it"
    size = int(sys.argv[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = [start(rank, size, port) for rank in range(size)]
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))


if __name__ == "__main__":
    main()
