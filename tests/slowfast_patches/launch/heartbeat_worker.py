"""One of three processes that train together: `python heartbeat_worker.py FOLDER PORT RANK`.

It waits while there is a file FOLDER/loading{RANK}, FOLDER/computing{RANK} or, before a collective
of ranks 1 and 2 in the forward pass, FOLDER/neighbour{RANK}. After each iteration it evaluates, and
waits in that while there is FOLDER/evaluating{RANK}. FOLDER/stop ends all.
"""

import logging
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slowfast_patches.launch.alarm import Limits
from slowfast_patches.launch.heartbeat import Heartbeat
from slowfast_patches.launch.pulse import WatchedBatches, note_communication
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.utils.distributed import World

__all__ = ["main"]

LIMITS = Limits(least=0.3, silence=1.5, tick=0.1)


class Net(nn.Module):
    """A linear layer, and a collective with a neighbour before it."""

    def __init__(self, rank: int, folder: Path) -> None:
        super().__init__()
        self.layer, self.rank, self.folder = nn.Linear(4, 1), rank, folder
        self.neighbours = dist.new_group([1, 2])

    def forward(self, x: Tensor) -> Tensor:
        if self.rank > 0:
            wait_while(self.folder / f"neighbour{self.rank}")
            dist.all_reduce(x.clone(), group=self.neighbours)
        return self.layer(x)


def wait_while(path: Path) -> None:
    while path.exists():
        time.sleep(0.01)


def main(folder: Path, port: int, rank: int) -> None:
    torch.set_num_threads(1)
    if rank == 0:
        logging.basicConfig(filename=folder / "log", level=logging.INFO, format="%(message)s")
    store = dist.TCPStore("127.0.0.1", port, 3, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    world = World(rank, 3, torch.device("cpu"), dist.PrefixStore("run", store))
    clock, net = Clock(), Net(rank, folder)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    model = nn.parallel.DistributedDataParallel(net)
    note_communication(clock.pulse, net, optimizer)
    with Heartbeat(clock.pulse, world, LIMITS), StopRequest(world) as request:
        train(clock, model, optimizer, folder, world, request)
    dist.destroy_process_group()


def train(
    clock: Clock,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    world: World,
    request: StopRequest,
) -> None:
    iteration, stop = 0, torch.zeros(1)
    while not stop:
        clock.pulse.begin(f"iteration {iteration}", "shape")
        with clock.wait(world.device):
            wait_while(folder / f"loading{world.rank}")
        with clock.time("training"):
            wait_while(folder / f"computing{world.rank}")
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            stop[:] = world.is_main and (folder / "stop").exists()
            dist.all_reduce(stop)
        evaluate(clock, folder, world, request)
        if iteration == 10:
            logging.info("iteration 10 is done")
        iteration += 1


def evaluate(clock: Clock, folder: Path, world: World, request: StopRequest) -> None:
    """Three mini-batches; the first of an evaluation has no median."""
    batches = WatchedBatches([0, 1, 2], clock.pulse, "the test")
    with clock.pulse.during("evaluating"):
        for number in request.between(batches, 3):
            if number > 0:
                wait_while(folder / f"evaluating{world.rank}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
