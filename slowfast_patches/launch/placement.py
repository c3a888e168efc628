"""Where the processes of a run are: as torchrun, srun or the host's own convention places them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.machine import available_cores

__all__ = ["Placement", "find_placement", "is_restart"]

_FIRST_PORT, _PORTS = 20_000, 12_000
"""Where the processes of a SLURM job meet: below the ports that Linux hands out (32,768 on)."""


@dataclass(frozen=True)
class Placement:
    """Where the processes of a run are, seen from one command that starts some of them.

    launcher: "torchrun", "srun", or "run_net" for the host's own convention.
    size: processes of the run, on all machines.
    machines: the number of machines; each has as many processes.
    machine: the number of this one, from 0.
    first_rank: rank of the command's first process.
    local_rank: the number of that process on this machine, from 0.
    count: the command's processes: 1 where it is the process itself, else it spawns them.
    address: where they meet, as a URL; None where nobody has said.
    """

    launcher: str
    size: int
    machines: int
    machine: int
    first_rank: int
    local_rank: int
    count: int
    address: str | None

    @property
    def per_machine(self) -> int:
        """Processes on each machine."""
        return self.size // self.machines

    def sharing(self, environment: Mapping[str, str]) -> int:
        """Processes that share the cores of this one: the machine's, unless srun gave each task
        cores of its own."""
        of_node = int(environment.get("SLURM_CPUS_ON_NODE", 0))
        own = self.launcher == "srun" and available_cores() < of_node
        return self.count if own else self.per_machine


def find_placement(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None = None
) -> Placement:
    """The placement that a recipe and a launcher's environment variables describe.

    torchrun has the first word (TORCHELASTIC_RUN_ID): one under each of srun's tasks is common
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
    if "TORCHELASTIC_RUN_ID" in environment:
        placement = _under_torchrun(recipe, environment, init_method)
    elif _step(environment)[0] > 1:
        placement = _under_srun(recipe, environment, init_method)
    else:
        return _by_hand(recipe, init_method)
    for option, given, none, said in (
        ("NUM_SHARDS", recipe.num_shards, 1, placement.machines),
        ("SHARD_ID", recipe.shard_id, 0, placement.machine),
    ):
        if given not in (none, said):  # it may repeat what the launcher says
            raise ValueError(
                f"{placement.launcher} says {option} {said}, the recipe or the command line "
                f"{given}; leave {option} out under {placement.launcher}"
            )
    return placement


def is_restart(environment: Mapping[str, str]) -> bool:
    """Whether torchrun (--max-restarts) or SLURM (requeueing) starts this run once more."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(environment.get(name) or 0) > 0 for name in counts)


def _by_hand(recipe: Recipe, init_method: str | None) -> Placement:
    count, machines, machine = max(1, recipe.num_gpus), recipe.num_shards, recipe.shard_id
    if not 0 <= machine < max(1, machines):
        raise ValueError(f"SHARD_ID {machine} is none of NUM_SHARDS {machines}, counted from 0")
    first = machine * count
    return Placement("run_net", count * machines, machines, machine, first, 0, count, init_method)


def _under_torchrun(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None
) -> Placement:
    tasks, nodes = _step(environment)
    if tasks > nodes:
        raise ValueError(
            f"srun starts torchrun {tasks} times on {nodes} machines; ask srun for one task a "
            "machine (--ntasks-per-node 1), or leave torchrun out"
        )
    if init_method is not None:
        raise ValueError(
            "torchrun says where the processes meet; leave --init-method out under torchrun"
        )
    machines = int(environment["GROUP_WORLD_SIZE"])
    size = int(environment["WORLD_SIZE"])
    here = int(environment.get("LOCAL_WORLD_SIZE", size // machines))
    if 0 < recipe.num_gpus != here:
        raise ValueError(
            f"torchrun starts {here} processes on this machine; write NUM_GPUS {here}, or "
            f"--nproc-per-node {recipe.num_gpus}"
        )
    return Placement(
        launcher="torchrun",
        size=size,
        machines=machines,
        machine=int(environment.get("GROUP_RANK", 0)),
        first_rank=int(environment["RANK"]),
        local_rank=int(environment.get("LOCAL_RANK", 0)),
        count=1,
        address="env://",
    )


def _under_srun(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None
) -> Placement:
    """A process for each task, or with one task a machine and several GPUs, one for each GPU."""
    (tasks, nodes), gpus = _step(environment), recipe.num_gpus
    spawns = tasks == nodes and gpus > 1
    if tasks % nodes or (not spawns and 0 < gpus != tasks // nodes):
        raise ValueError(
            f"srun starts {tasks} tasks on {nodes} machines, NUM_GPUS says {gpus}; ask for one or "
            f"for NUM_GPUS on each (--ntasks-per-node)"
        )
    count = gpus if spawns else 1
    return Placement(
        launcher="srun",
        size=tasks * count,
        machines=nodes,
        machine=int(environment["SLURM_NODEID"]),
        first_rank=int(environment["SLURM_NODEID" if spawns else "SLURM_PROCID"]) * count,
        local_rank=int(environment["SLURM_LOCALID"]),
        count=count,
        address=init_method or _step_address(environment),
    )


def _step(environment: Mapping[str, str]) -> tuple[int, int]:
    """Tasks of the step of srun that this is in, 0 without one, and its machines."""
    if "SLURM_STEP_ID" not in environment:
        return 0, 1
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")
    nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES", "1")
    return int(tasks), int(nodes)


def _step_address(environment: Mapping[str, str]) -> str:
    """The first machine of the step, where its rank 0 is, at a port that its numbers give: jobs may
    share a machine.

    submitit expands the job's list of machines, of which a step may have only some; of the step's
    we need the first name only.
    """
    listed = environment.get("SLURM_STEP_NODELIST", "localhost")
    first = re.match(r"(?:[^,\[]|\[[^]]*\])*", listed)  # node[01-16,20],login: up to the comma
    assert first is not None
    host = re.sub(r"\[(\d+)[^]]*\]", r"\1", first[0])
    job, step = int(environment.get("SLURM_JOB_ID", 0)), int(environment["SLURM_STEP_ID"])
    return f"tcp://{host}:{_FIRST_PORT + (97 * job + step) % _PORTS}"
