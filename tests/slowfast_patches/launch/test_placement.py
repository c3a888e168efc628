"""Where the processes of a run are: worked out by hand for each launcher."""

import pytest
from submitit.slurm.slurm import SlurmJobEnvironment

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch import placement as placement_module
from slowfast_patches.launch.placement import Placement, find_placement, is_restart

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "16", "GROUP_WORLD_SIZE": "2"}
TORCHRUN |= {"RANK": "11", "GROUP_RANK": "1", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
JOB = {"SLURM_JOB_ID": "1234567", "SLURM_NTASKS": "64", "SLURM_NNODES": "9"}
JOB |= {"SLURM_JOB_NODELIST": "gpu[01-09]"}
STEP = JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}
STEP |= {"SLURM_STEP_NODELIST": "gpu[07,11]"}
ONE_TASK_A_GPU = STEP | {"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
ONE_TASK_A_MACHINE = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
ONE_TASK_A_MACHINE |= {"SLURM_LOCALID": "0"}
THERE = "tcp://first:9999"


def config(*overrides: object) -> Recipe:
    return load_recipe(None, overrides)


def test_one_process_alone():
    alone = Placement("run_net", 1, 1, 0, first_rank=0, local_rank=0, count=1, address=None)
    assert find_placement(config("NUM_GPUS", 0), {}) == alone
    assert find_placement(config("NUM_GPUS", 1), {}) == alone


def test_the_host_s_convention():
    cfg = config("NUM_GPUS", 8, "NUM_SHARDS", 3, "SHARD_ID", 2)
    expected = Placement("run_net", 24, 3, 2, first_rank=16, local_rank=0, count=8, address=THERE)
    assert find_placement(cfg, {}, THERE) == expected
    cpu = find_placement(config("NUM_GPUS", 0, "NUM_SHARDS", 3, "SHARD_ID", 2), {}, THERE)
    assert (cpu.size, cpu.first_rank, cpu.count, cpu.per_machine) == (3, 2, 1, 1)


def test_torchrun_also_inside_srun():
    expected = Placement("torchrun", 16, 2, 1, 11, local_rank=3, count=1, address="env://")
    for cfg in (config("NUM_GPUS", 8), config("NUM_GPUS", 0)):
        assert find_placement(cfg, TORCHRUN) == expected
        assert find_placement(cfg, TORCHRUN | ONE_TASK_A_MACHINE) == expected


def test_srun_with_a_task_for_each_process():
    cfg = config("NUM_GPUS", 8)
    placement = find_placement(cfg, ONE_TASK_A_GPU)
    port = 20_000 + 97 * 1_234_567 % 12_000
    address = f"tcp://gpu07:{port}"
    assert placement == Placement("srun", 16, 2, 1, 11, local_rank=3, count=1, address=address)
    assert find_placement(config("NUM_GPUS", 0), ONE_TASK_A_GPU).first_rank == 11
    assert find_placement(cfg, ONE_TASK_A_GPU, THERE).address == THERE
    later = find_placement(cfg, ONE_TASK_A_GPU | {"SLURM_STEP_ID": "1"}).address
    assert later not in (None, address)


def test_srun_with_a_task_for_each_machine_spawns_the_others():
    placement = find_placement(config("NUM_GPUS", 8), ONE_TASK_A_MACHINE)
    assert placement.address is not None
    assert (placement.size, placement.machines, placement.machine) == (16, 2, 1)
    assert (placement.first_rank, placement.local_rank, placement.count) == (8, 0, 8)
    for gpus in (0, 1):
        one = find_placement(config("NUM_GPUS", gpus), ONE_TASK_A_MACHINE)
        assert (one.size, one.first_rank, one.count) == (2, 1, 1)


@pytest.mark.parametrize(
    "environment",
    [
        JOB,  # a batch script
        JOB | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash
    ],
)
def test_a_job_s_script_and_its_shell_are_no_launcher(environment):
    placement = find_placement(config("NUM_GPUS", 8), environment)
    assert (placement.launcher, placement.size, placement.count) == ("run_net", 8, 8)


@pytest.mark.parametrize(
    "listed", ["a", "a-1,b2", "gpu[07,11]-ib", "gpu[01-09],login", "gpu-[3]", "a[1,7],b[2-4]"]
)
def test_the_first_machine_is_the_one_that_submitit_finds(listed, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", listed)
    environment = ONE_TASK_A_GPU | {"SLURM_STEP_NODELIST": listed}
    address = find_placement(config("NUM_GPUS", 8), environment).address
    assert address.startswith(f"tcp://{SlurmJobEnvironment().hostnames[0]}:")


@pytest.mark.parametrize(("cores", "sharing"), [(32, 8), (4, 1)])
def test_tasks_of_srun_share_the_machine_s_cores_or_have_their_own(monkeypatch, cores, sharing):
    monkeypatch.setattr(placement_module, "available_cores", lambda: cores)
    placement = find_placement(config("NUM_GPUS", 8), ONE_TASK_A_GPU)
    assert placement.sharing({"SLURM_CPUS_ON_NODE": "32"}) == sharing


# Two launchers at once.


@pytest.mark.parametrize(
    ("environment", "keys", "init_method", "said"),
    [
        (TORCHRUN, ["NUM_SHARDS", 3], None, "leave NUM_SHARDS out under torchrun"),
        (TORCHRUN, ["NUM_SHARDS", 2, "SHARD_ID", 0], None, None),
        (TORCHRUN, ["NUM_SHARDS", 2, "SHARD_ID", 5], None, "leave SHARD_ID out under torchrun"),
        (TORCHRUN, [], THERE, "leave --init-method out under torchrun"),
        (TORCHRUN, ["NUM_GPUS", 4], None, "NUM_GPUS 8, or --nproc-per-node 4"),
        (TORCHRUN | ONE_TASK_A_GPU, [], None, "srun starts torchrun 16 times on 2 machines"),
        (ONE_TASK_A_GPU, ["NUM_SHARDS", 3], None, "leave NUM_SHARDS out under srun"),
        (ONE_TASK_A_GPU, ["NUM_SHARDS", 2, "SHARD_ID", 1], THERE, None),
        (ONE_TASK_A_GPU, ["NUM_GPUS", 4], None, "NUM_GPUS on each"),
        (ONE_TASK_A_GPU | {"SLURM_STEP_NUM_TASKS": "15"}, [], None, "15 tasks on 2 machines"),
        ({}, ["NUM_SHARDS", 2, "SHARD_ID", 2], THERE, "SHARD_ID 2 is none of NUM_SHARDS 2"),
    ],
)
def test_launchers_that_contradict_each_other(environment, keys, init_method, said):
    cfg = config("NUM_GPUS", 8, *keys)
    if said is None:
        assert find_placement(cfg, environment, init_method).size == 16
        return
    with pytest.raises(ValueError, match=said):
        find_placement(cfg, environment, init_method)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, True),
        ({"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}, True),
    ],
)
def test_a_restart(environment, expected):
    assert is_restart(environment) is expected
