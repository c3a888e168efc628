"""Translate the conventions of srun and PySlowFast to torchrun's environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.machine import available_cores

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Range of rendezvous ports of SLURM jobs, below the ephemeral ports of Linux (from 32,768)."""


@dataclass(frozen=True)
class Placement:
    """Placement of the processes of a run on machines.

    Attributes:
        machines: Number of machines.
        machine: Index of this machine, from 0.
        per_machine: Number of processes on each machine.
        local_rank: Rank of this process on this machine. None if it starts the ranks instead.
        address: Rendezvous, HOST:PORT of the first machine. None if none was given.
        has_cores: Whether the launcher has assigned cores to this rank that no other rank uses.
    """

    machines: int
    machine: int
    per_machine: int
    local_rank: int | None
    address: str | None = None
    has_cores: bool = False

    @property
    def size(self) -> int:
        """World size: the number of processes on all machines."""
        return self.machines * self.per_machine

    @property
    def first_rank(self) -> int:
        """Rank of this process, or of the first rank that this process starts."""
        return self.machine * self.per_machine + (self.local_rank or 0)

    def variables(self, local_rank: int) -> dict[str, str]:
        """Return the environment variables that torchrun would set for a rank of this machine.

        LOCAL_WORLD_SIZE is the number of processes that share the available cores.
        """
        assert self.address is not None
        host, _, port = self.address.rpartition(":")
        return {
            "RANK": str(self.machine * self.per_machine + local_rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(1 if self.has_cores else self.per_machine),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }


def find_placement(
    recipe: Recipe, environment: Mapping[str, str], init_method: str | None = None
) -> Placement:
    """Return the placement given by the launcher's environment variables and the recipe.

    torchrun comes before srun, because srun often starts torchrun on each machine. srun is the
    launcher only if it has started several tasks: it starts one task for `srun --pty bash`. Without
    a launcher, NUM_GPUS, NUM_SHARDS, SHARD_ID and --init-method say where the processes are.

    Raises:
        ValueError: The launcher contradicts the recipe.
    """
    given = init_method and re.fullmatch(r"tcp://([^/]+:\d+)/?", init_method)
    if init_method and not given:
        raise UserError(
            f"--init-method is {init_method}, but must be tcp://HOST:PORT, where HOST is the first "
            "machine."
        )
    address = given[1] if given else None
    asked = (recipe.num_shards, recipe.shard_id)
    if "TORCHELASTIC_RUN_ID" in environment:
        if address:
            raise UserError("torchrun provides the rendezvous. Remove --init-method.")
        machines = int(environment["GROUP_WORLD_SIZE"])
        restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        reuses_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if restarts and machines > 1 and reuses_store:
            raise UserError(
                "On several machines, restarted processes would read the addresses of ended ones. "
                "Leave out --max-restarts. Or set the environment variable "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all machines, and pass --rdzv-backend "
                "c10d --rdzv-endpoint FIRST-MACHINE:PORT to torchrun in place of --node-rank, "
                "--master-addr and --master-port."
            )
        count = int(environment["WORLD_SIZE"]) // machines
        address = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        machine, rank = divmod(int(environment["RANK"]), count)
        found = Placement(machines, machine, count, rank, address)
    elif int(environment.get("SLURM_STEP_NUM_TASKS", 0)) > 1:
        found = _under_srun(recipe, environment, address)
    else:
        count = max(1, recipe.num_gpus)
        found = Placement(*asked, count, 0 if count == 1 else None, address)
    if 0 < recipe.num_gpus != found.per_machine:
        raise UserError(
            f"The launcher starts {found.per_machine} processes on each machine, but NUM_GPUS is "
            f"{recipe.num_gpus}. The two numbers must be equal."
        )
    # The recipe may leave out NUM_SHARDS and SHARD_ID, or repeat the values of the launcher.
    allowed = {(1, 0), (found.machines, 0), (found.machines, found.machine)}
    if asked not in allowed or not 0 <= found.machine < found.machines:
        raise UserError(
            f"NUM_SHARDS is {asked[0]} and SHARD_ID is {asked[1]}, but SHARD_ID must be from 0 to "
            "NUM_SHARDS - 1. If torchrun or srun starts the run, remove both keys."
        )
    return found


def _under_srun(recipe: Recipe, environment: Mapping[str, str], address: str | None) -> Placement:
    """Return the placement of a task started by srun.

    Normally, each task is one rank. If srun starts one task per machine and NUM_GPUS is above 1,
    each task starts NUM_GPUS ranks.
    """
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    machines = int(environment["SLURM_STEP_NUM_NODES"])
    if tasks % machines:
        raise UserError(
            f"srun started {tasks} tasks on {machines} machines, but each machine must have the "
            "same number of tasks."
        )
    starts = tasks == machines and recipe.num_gpus > 1
    return Placement(
        machines=machines,
        machine=int(environment["SLURM_NODEID"]),
        per_machine=recipe.num_gpus if starts else tasks // machines,
        local_rank=None if starts else int(environment["SLURM_LOCALID"]),
        address=address or _step_address(environment),
        has_cores=not starts and available_cores() < int(environment.get("SLURM_CPUS_ON_NODE", 0)),
    )


def _step_address(environment: Mapping[str, str]) -> str:
    """Return HOST:PORT on the first machine of a call of srun (a SLURM step).

    The port depends on the job and the step, because several steps may run on the same machine.
    """
    # This is a list such as "node[01-16,20],login". Its first machine is node01.
    listed = environment.get("SLURM_STEP_NODELIST", "localhost")
    first = re.sub(r"(\[\d+)[^]]*", r"\1", listed).split(",")[0]
    number = 97 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return f"{re.sub('[][]', '', first)}:{_FIRST_PORT + number % _PORTS}"
