"""Find out how many processes a run has on each machine, and which of them this process is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.machine import available_cores

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Range of rendezvous ports of SLURM jobs, below the ephemeral ports of Linux (from 32,768)."""


@dataclass(frozen=True)
class Placement:
    """Placement of the processes of a run on machines.

    Attributes:
        launcher: "torchrun", "srun", or "run_net" for PySlowFast's convention.
        machines: Number of machines.
        machine: Index of this machine, from 0.
        per_machine: Number of processes on each machine.
        local_rank: Rank of this process on this machine. None if this process is not a rank itself
            but starts the ranks of this machine.
        address: Rendezvous, HOST:PORT of the first machine. None if torchrun provides the
            rendezvous, or if no rendezvous was given.
    """

    launcher: str
    machines: int
    machine: int
    per_machine: int
    local_rank: int | None
    address: str | None = None

    @property
    def size(self) -> int:
        """World size: the number of processes on all machines."""
        return self.machines * self.per_machine

    @property
    def first_rank(self) -> int:
        """Rank of this process, or of the first rank that this process starts."""
        return self.machine * self.per_machine + (self.local_rank or 0)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that torchrun would set for this process.

        LOCAL_WORLD_SIZE is the number of processes that share the available cores. It is 1 if srun
        has assigned separate cores to each task.

        Args:
            environment: Environment variables that SLURM has set, such as os.environ.
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
    """Return the placement given by the launcher's environment variables and the recipe.

    If both torchrun and srun have set variables, torchrun is the launcher, because srun often
    starts torchrun on each machine. srun is the launcher only if it has started several tasks. It
    starts one task for `srun --pty bash`, and none for a batch script. Without a launcher,
    PySlowFast's convention applies (see launch.py).

    Args:
        recipe: Recipe with NUM_GPUS, NUM_SHARDS and SHARD_ID.
        environment: Environment variables, such as os.environ.
        init_method: Value of the option --init-method, or None.

    Raises:
        ValueError: The launcher contradicts the recipe.
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
            f"{launcher} starts {placement.per_machine} processes on each machine, but NUM_GPUS is "
            f"{recipe.num_gpus}. The two numbers must be equal."
        )
    # The recipe may leave out NUM_SHARDS and SHARD_ID, or repeat the values of the launcher.
    asked = (recipe.num_shards, recipe.shard_id)
    if asked not in {(1, 0), (machines, 0), (machines, placement.machine)}:
        raise ValueError(
            f"{launcher} sets NUM_SHARDS {machines} and SHARD_ID {placement.machine}, but the "
            f"recipe sets {asked[0]} and {asked[1]}. Remove these keys from the recipe and the "
            "command."
        )
    return placement


def is_restart(environment: Mapping[str, str]) -> bool:
    """Return whether this run was restarted, by torchrun --max-restarts or by a SLURM requeue."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    return any(int(environment.get(name) or 0) > 0 for name in counts)


def _host_and_port(url: str) -> str:
    match = re.fullmatch(r"tcp://([^/]+:\d+)/?", url)
    if match is None:
        raise ValueError(
            f"--init-method is {url}, but must be tcp://HOST:PORT, where HOST is the first machine."
        )
    return match[1]


def _by_hand(recipe: Recipe, address: str | None) -> Placement:
    machines = recipe.num_shards
    machine = recipe.shard_id
    if not 0 <= machine < max(1, machines):
        raise ValueError(
            f"SHARD_ID is {machine}, but must be from 0 to {machines - 1} (NUM_SHARDS - 1)."
        )
    alone = recipe.num_gpus < 2
    count = max(1, recipe.num_gpus)
    return Placement("run_net", machines, machine, count, 0 if alone else None, address)


def _under_torchrun(environment: Mapping[str, str], address: str | None) -> Placement:
    if address is not None:
        raise ValueError("torchrun provides the rendezvous. Remove --init-method.")
    machines = int(environment["GROUP_WORLD_SIZE"])
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if restarts and machines > 1 and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            "On several machines, torchrun --max-restarts requires --rdzv-backend c10d and the "
            "environment variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because restarted "
            "processes cannot reuse the TCP store of the previous processes."
        )
    per_machine = int(environment["WORLD_SIZE"]) // machines
    machine, local_rank = divmod(int(environment["RANK"]), per_machine)
    return Placement("torchrun", machines, machine, per_machine, local_rank)


def _under_srun(recipe: Recipe, environment: Mapping[str, str], address: str | None) -> Placement:
    """Return the placement of a task started by srun.

    Normally, each task is one rank. If srun starts one task per machine and NUM_GPUS is above 1,
    each task starts NUM_GPUS ranks.
    """
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    machines = int(environment["SLURM_STEP_NUM_NODES"])
    if tasks % machines:
        raise ValueError(
            f"srun started {tasks} tasks on {machines} machines, but each machine must have the "
            "same number of tasks."
        )
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
    """Return HOST:PORT of the rendezvous for a call of srun (a SLURM step).

    The host is the first machine of the step, where rank 0 runs. The port depends on the job ID and
    the step ID, because several jobs may run on the same machine.
    """
    # This is a list such as "node[01-16,20],login".
    listed = environment.get("SLURM_STEP_NODELIST", "localhost")
    # The first entry of "node[01-16,20],login" is "node[01". Brackets are removed below.
    first = re.sub(r"(\[\d+)[^]]*", r"\1", listed).split(",")[0]
    number = 97 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return f"{re.sub('[][]', '', first)}:{_FIRST_PORT + number % _PORTS}"
