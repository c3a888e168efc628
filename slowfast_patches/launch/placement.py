"""Where the processes of a run are: as torchrun, srun or the host's own convention places them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.machine import available_cores

__all__ = ["Placement", "find_placement", "is_restart"]

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Where the processes of a SLURM job meet: below the ports that Linux hands out (32,768 on)."""


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run are, seen from one command that is, or starts, some of them.

    launcher: "torchrun", "srun", or "run_net" for the host's own convention.
    machines: the number of machines.
    machine: the number of this one, from 0.
    per_machine: processes on each machine.
    local_rank: this process's number on its machine; None where the command starts all of them.
    address: HOST:PORT of the first machine, where the processes meet; None where torchrun knows it,
        or it is not given.
    """

    launcher: str
    machines: int
    machine: int
    per_machine: int
    local_rank: int | None
    address: str | None = None

    @property
    def size(self) -> int:
        """Processes of the run, on all machines."""
        return self.machines * self.per_machine

    @property
    def first_rank(self) -> int:
        """The rank of the command's only or first process."""
        return self.machine * self.per_machine + (self.local_rank or 0)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables by which torchrun would tell this process where it is.

        LOCAL_WORLD_SIZE counts the processes that share its cores: those of the machine, unless
        srun gave each task cores of its own.
        """
        assert self.address is not None
        own_cores = available_cores() < int(environment.get("SLURM_CPUS_ON_NODE", 0))
        host, _, port = self.address.rpartition(":")
        return {
            "RANK": str(self.first_rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(1 if own_cores else self.per_machine),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }


def find_placement(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None = None
) -> Placement:
    """The placement that a recipe and a launcher's environment variables describe.

    torchrun takes precedence (TORCHELASTIC_RUN_ID): one under each of srun's tasks is common
    practice. Then srun, where its step has several tasks: `srun --pty bash` has one, and a batch
    script none. Else the host's convention: NUM_GPUS processes, or one on the CPU, on each of
    NUM_SHARDS machines, of which this is number SHARD_ID.

    Args:
        recipe: of it NUM_GPUS, NUM_SHARDS and SHARD_ID are read.
        environment: such as os.environ.
        init_method: the option of that name, if given.

    Raises:
        ValueError: recipe and launcher contradict each other; says what to leave out.
    """
    address = None if init_method is None else _host_and_port(init_method)
    if "TORCHELASTIC_RUN_ID" in environment:
        placement = _under_torchrun(environment, address)
    elif int(environment.get("SLURM_STEP_NUM_TASKS", 0)) > 1:
        placement = _under_srun(recipe, environment, address)
    else:
        return _by_hand(recipe, address)
    launcher = placement.launcher
    machines = placement.machines
    if 0 < recipe.num_gpus != placement.per_machine:
        raise ValueError(
            f"{launcher} starts {placement.per_machine} processes on each machine, NUM_GPUS says "
            f"{recipe.num_gpus}; make them the same"
        )
    asked = (recipe.num_shards, recipe.shard_id)  # may repeat what the launcher says
    if asked not in {(1, 0), (machines, 0), (machines, placement.machine)}:
        raise ValueError(
            f"{launcher} says NUM_SHARDS {machines} and SHARD_ID {placement.machine}, the recipe "
            f"{asked[0]} and {asked[1]}; leave them out under {launcher}"
        )
    return placement


def is_restart(environment: Mapping[str, str]) -> bool:
    """Whether torchrun (--max-restarts) or SLURM (requeueing) starts this run once more."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(environment.get(name) or 0) > 0 for name in counts)


def _host_and_port(url: str) -> str:
    match = re.fullmatch(r"tcp://([^/]+:\d+)/?", url)
    if match is None:
        raise ValueError(f"--init-method {url}: machines meet at tcp://HOST:PORT of the first")
    return match[1]


def _by_hand(recipe: Recipe, address: str | None) -> Placement:
    machines = recipe.num_shards
    machine = recipe.shard_id
    if not 0 <= machine < max(1, machines):
        raise ValueError(f"SHARD_ID {machine} is not one of NUM_SHARDS {machines}, from 0")
    alone = recipe.num_gpus < 2
    count = max(1, recipe.num_gpus)
    return Placement("run_net", machines, machine, count, 0 if alone else None, address)


def _under_torchrun(environment: Mapping[str, str], address: str | None) -> Placement:
    if address is not None:
        raise ValueError("torchrun says where the processes meet; leave --init-method out")
    machines = int(environment["GROUP_WORLD_SIZE"])
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if restarts and machines > 1 and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            "with --max-restarts, torchrun on several machines needs --rdzv-backend c10d and "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment: the processes that it starts "
            "again do not meet in the store of those before"
        )
    per_machine = int(environment["WORLD_SIZE"]) // machines
    machine, local_rank = divmod(int(environment["RANK"]), per_machine)
    return Placement("torchrun", machines, machine, per_machine, local_rank)


def _under_srun(recipe: Recipe, environment: Mapping[str, str], address: str | None) -> Placement:
    """A process for each task, or with one task a machine and several GPUs, one for each GPU."""
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    machines = int(environment["SLURM_STEP_NUM_NODES"])
    if tasks % machines:
        raise ValueError(f"srun starts {tasks} tasks on {machines} machines: not as many on each")
    starts = tasks == machines and recipe.num_gpus > 1
    return Placement(
        launcher="srun",
        machines=machines,
        machine=int(environment["SLURM_NODEID"]),
        per_machine=recipe.num_gpus if starts else tasks // machines,
        local_rank=None if starts else int(environment["SLURM_LOCALID"]),
        address=address or _step_address(environment),
    )


def _step_address(environment: Mapping[str, str]) -> str:
    """The first machine of the step, where rank 0 is, at a port that its numbers give: jobs may
    share a machine.

    submitit expands the job's list of machines, of which a step may have only some; of the step's
    we need the first name only.
    """
    listed = environment.get("SLURM_STEP_NODELIST", "localhost")
    first = re.sub(r"(\[\d+)[^]]*", r"\1", listed).split(",")[0]  # node[01-16,20],login: node[01]
    number = 97 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return f"{re.sub('[][]', '', first)}:{_FIRST_PORT + number % _PORTS}"
