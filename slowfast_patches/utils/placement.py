"""Where the processes of a run are: as torchrun, srun or the host's own convention places them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slowfast_patches.config.recipe import Recipe

__all__ = ["Placement", "find_placement", "is_restart", "meeting_port"]

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

    @property
    def terminal(self) -> str:
        """Processes with the same one write to the same terminal: srun has one for all."""
        return "srun" if self.launcher == "srun" else f"machine {self.machine}"

    @property
    def speaks(self) -> bool:
        """Whether this command says what all of a machine's commands find wrong."""
        return self.local_rank == 0


def find_placement(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None = None
) -> Placement:
    """The placement that a recipe and a launcher's environment variables describe.

    torchrun has the first word (TORCHELASTIC_RUN_ID): one under each of srun's tasks is common
    practice. Then srun, where its step has several tasks: `srun --pty bash` has one, and a batch
    script none. Else the host's convention: NUM_GPUS processes, or one on the CPU, on each of
    NUM_SHARDS machines, of which this is number SHARD_ID.

    Args:
        recipe: the recipe; of it NUM_GPUS, NUM_SHARDS and SHARD_ID are read.
        environment: such as os.environ.
        init_method: the option of that name, if given.

    Raises:
        ValueError: two launchers at once that contradict each other, and what to leave out, or a
            machine that is not one of them.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _under_torchrun(recipe, environment, init_method)
    if _step_tasks(environment) > 1:
        return _under_srun(recipe, environment, init_method)
    if not 0 <= recipe.shard_id < max(1, recipe.num_shards):
        raise ValueError(
            f"SHARD_ID {recipe.shard_id} is not one of NUM_SHARDS {recipe.num_shards} machines, "
            f"counted "
            "from 0"
        )
    count = max(1, recipe.num_gpus)
    return Placement(
        launcher="run_net",
        size=count * recipe.num_shards,
        machines=recipe.num_shards,
        machine=recipe.shard_id,
        first_rank=recipe.shard_id * count,
        local_rank=0,
        count=count,
        address=init_method,
    )


def is_restart(environment: Mapping[str, str]) -> bool:
    """Whether torchrun (--max-restarts) or SLURM (requeueing) starts this run once more."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(environment.get(name) or 0) > 0 for name in counts)


def meeting_port(job: int, step: int = 0) -> int:
    """Where the processes of a SLURM job meet on its first machine, which it may share with others.

    Args:
        job, step: their numbers; neighbouring ones have different ports.
    """
    return _FIRST_PORT + (97 * job + step) % _PORTS


def _under_torchrun(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None
) -> Placement:
    tasks, nodes = _step_tasks(environment), _step_nodes(environment)
    if tasks > nodes:
        raise ValueError(
            f"srun starts torchrun {tasks} times on {nodes} machines, and each torchrun starts "
            "processes; ask srun for one task a machine (--ntasks-per-node 1), or leave torchrun "
            "out: srun python tools/run_net.py ..."
        )
    if init_method is not None:
        raise ValueError(
            f"torchrun says where the processes meet, and so does --init-method {init_method}; "
            "leave --init-method out under torchrun"
        )
    size, machines = int(environment["WORLD_SIZE"]), int(environment["GROUP_WORLD_SIZE"])
    placement = Placement(
        launcher="torchrun",
        size=size,
        machines=machines,
        machine=int(environment.get("GROUP_RANK", 0)),
        first_rank=int(environment["RANK"]),
        local_rank=int(environment.get("LOCAL_RANK", 0)),
        count=1,
        address="env://",
    )
    _check_machines(recipe, placement)
    started = int(environment.get("LOCAL_WORLD_SIZE", placement.per_machine))
    if 0 < recipe.num_gpus != started:
        raise ValueError(
            f"torchrun starts {started} processes on this machine, NUM_GPUS says "
            f"{recipe.num_gpus}; "
            f"write NUM_GPUS {started}, or --nproc-per-node {recipe.num_gpus}"
        )
    return placement


def _under_srun(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None
) -> Placement:
    """A process for each task, or with one task a machine and several GPUs, one for each GPU."""
    tasks, nodes = _step_tasks(environment), _step_nodes(environment)
    spawns = tasks == nodes and recipe.num_gpus > 1
    if tasks % nodes or (not spawns and 0 < recipe.num_gpus != tasks // nodes):
        wanted = f"one or NUM_GPUS {recipe.num_gpus}" if recipe.num_gpus > 1 else "as many"
        raise ValueError(
            f"srun starts {tasks} tasks on {nodes} machines, NUM_GPUS says {recipe.num_gpus}; ask "
            f"for {wanted} on each (--ntasks-per-node)"
        )
    count = recipe.num_gpus if spawns else 1
    placement = Placement(
        launcher="srun",
        size=tasks * count,
        machines=nodes,
        machine=int(environment["SLURM_NODEID"]),
        first_rank=int(environment["SLURM_NODEID" if spawns else "SLURM_PROCID"]) * count,
        local_rank=int(environment["SLURM_LOCALID"]),
        count=count,
        address=init_method or _step_address(environment),
    )
    _check_machines(recipe, placement)
    return placement


def _check_machines(recipe: Recipe, placement: Placement) -> None:
    """The host's keys may repeat what the launcher says, as the same recipe is used with both."""
    launcher = placement.launcher
    if recipe.num_shards not in (1, placement.machines):
        raise ValueError(
            f"{launcher} runs on {placement.machines} machines, NUM_SHARDS says "
            f"{recipe.num_shards}; "
            f"leave NUM_SHARDS (--num-shards) out under {launcher}"
        )
    if recipe.shard_id not in (0, placement.machine):
        raise ValueError(
            f"{launcher} says that this is machine {placement.machine}, SHARD_ID says "
            f"{recipe.shard_id}; leave SHARD_ID (--shard-id) out under {launcher}"
        )


def _step_tasks(environment: Mapping[str, str]) -> int:
    """Tasks of the step of srun that this is in, 0 without one."""
    if "SLURM_STEP_ID" not in environment:
        return 0
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    return int(next((environment[name] for name in names if name in environment), 1))


def _step_nodes(environment: Mapping[str, str]) -> int:
    names = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    return int(next((environment[name] for name in names if name in environment), 1))


def _step_address(environment: Mapping[str, str]) -> str:
    """The first machine of the step, where its rank 0 is, at a port that its numbers give.

    submitit expands the job's list of machines, of which a step may have only some; of the step's
    we need the first name only.
    """
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    listed = next((environment[name] for name in names if name in environment), "localhost")
    first = re.match(r"(?:[^,\[]|\[[^]]*\])*", listed)  # node[01-16,20],login: up to the comma
    assert first is not None
    host = re.sub(r"\[(\d+)[^]]*\]", r"\1", first[0])
    port = meeting_port(int(environment.get("SLURM_JOB_ID", 0)), int(environment["SLURM_STEP_ID"]))
    return f"tcp://{host}:{port}"
