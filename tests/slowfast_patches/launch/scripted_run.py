"""Start a run whose processes succeed or fail as DEED says: `python scripted_run.py KEY VALUE ...`

The environment variable ADDRESS is the rendezvous. With SPAWN, two processes are started on each
machine, by the method "spawn" as in real runs, or by "fork", which is faster. Without SPAWN, a
machine has a single process, so a rank does not wait for other ranks to report the cause first.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch import launch
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.record.log import setup_logging
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import UserError

DEADLINE = 240
"""Seconds after which any process ends, whatever it waits for."""
SAVING = float(os.environ.get("SAVING", "1"))
"""Seconds that rank 0 takes to save, while the others wait for it."""


def main(recipe: Recipe, world: World) -> None:
    setup_logging(recipe.output_dir, world)
    signal.alarm(DEADLINE)
    folder, name = Path(recipe.output_dir), os.environ["DEED"]
    if name == "train":
        _train(folder, world, timedelta(seconds=recipe.dist_timeout_seconds))
    if world.rank == 1:
        _fail(name)
    elif name == "bug":
        time.sleep(DEADLINE)  # in no collective, and still it ends
    total = torch.ones(1)
    dist.all_reduce(total)
    (folder / f"rank_{world.rank}").write_text(f"{int(total)} {world.local_rank}")


def _fail(name: str) -> None:
    if name == "mistake":
        raise UserError("a key of the recipe is wrong")
    if name == "bug":
        error = KeyError("no such thing")
        error.add_note("in iteration 7")
        raise error
    if name == "kill" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "silence":
        time.sleep(DEADLINE)


def _train(folder: Path, world: World, patience: timedelta) -> None:
    """Run iterations until a signal arrives. Rank 0 then saves for SAVING seconds."""
    with StopRequest(world, patience) as stop:
        for iteration in range(DEADLINE * 10):
            stop.ask()
            if iteration == 1:
                os.write(1, b"trains\n")
            time.sleep(0.1)
            if stop.agreed():
                time.sleep(0.0 if world.rank else SAVING)
                (folder / f"saved_{world.rank}").write_text(str(iteration))
                stop.check()


def start(keys: list[str]) -> None:
    launch._MARGIN = 0.5
    if "SPAWN" in os.environ:
        launch.find_placement = _two_a_machine
        launch.START_METHOD = os.environ["SPAWN"]
        os.register_at_fork(after_in_child=_forget_handlers)
    else:
        launch._LOST_SECONDS = 0.0
    launch.launch(load_recipe(None, keys), os.environ.get("ADDRESS"), main)


def _two_a_machine(recipe: Recipe, _: object, url: str | None) -> Placement:
    address = url and url.removeprefix("tcp://")
    return Placement(recipe.num_shards, recipe.shard_id, 2, None, address)


def _forget_handlers() -> None:
    """Reset the signal handlers, as in a spawned process."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@tool
def run() -> int:
    start(sys.argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(run())
