"""Placements of processes for each launcher, worked out by hand."""

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch import placement as placement_module
from slowfast_patches.launch.placement import Placement, find_placement

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "16", "GROUP_WORLD_SIZE": "2"}
TORCHRUN |= {"RANK": "11", "GROUP_RANK": "1", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
TORCHRUN |= {"MASTER_ADDR": "first", "MASTER_PORT": "7"}
RESTARTS = {"TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
JOB = {"SLURM_JOB_ID": "1234567", "SLURM_NTASKS": "64", "SLURM_NNODES": "9"}
JOB |= {"SLURM_JOB_NODELIST": "gpu[01-09]"}
STEP = JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}
STEP |= {"SLURM_STEP_NODELIST": "gpu[07,11]"}
ONE_TASK_A_GPU = STEP | {"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "11", "SLURM_LOCALID": "3"}
ONE_TASK_A_MACHINE = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
ONE_TASK_A_MACHINE |= {"SLURM_LOCALID": "0"}
UNDER_TORCHRUN = Placement(2, 1, 8, 3, "first:7")
THERE = "tcp://first:9999"


def config(*overrides: object) -> Recipe:
    return load_recipe(None, overrides)


@pytest.mark.parametrize(
    ("keys", "environment", "expected", "size", "rank"),
    [
        (("NUM_GPUS", 0), {}, Placement(1, 0, 1, 0), 1, 0),
        (("NUM_GPUS", 8), {}, Placement(1, 0, 8, None), 8, 0),
        (("NUM_SHARDS", 3, "SHARD_ID", 2), {}, Placement(3, 2, 8, None), 24, 16),
        # A batch script, and srun --pty bash.
        ((), JOB, Placement(1, 0, 8, None), 8, 0),
        ((), JOB | {"SLURM_STEP_NUM_TASKS": "1"}, Placement(1, 0, 8, None), 8, 0),
        (("NUM_SHARDS", 2, "SHARD_ID", 0), TORCHRUN | ONE_TASK_A_MACHINE, UNDER_TORCHRUN, 16, 11),
    ],
)
def test_who_starts_which_ranks(keys, environment, expected, size, rank):
    placement = find_placement(config("NUM_GPUS", 8, *keys), environment)
    assert placement == expected
    assert (placement.size, placement.first_rank) == (size, rank)


@pytest.mark.parametrize(
    ("gpus", "environment", "per_machine", "local_rank", "size", "rank"),
    [
        (8, ONE_TASK_A_GPU, 8, 3, 16, 11),
        (8, ONE_TASK_A_MACHINE, 8, None, 16, 8),
        (1, ONE_TASK_A_MACHINE, 1, 0, 2, 1),
    ],
)
def test_srun_has_a_task_for_each_process_or_machine(
    gpus, environment, per_machine, local_rank, size, rank
):
    placement = find_placement(config("NUM_GPUS", gpus), environment)
    address = f"gpu07:{20_000 + 97 * 1_234_567 % 12_000}"
    assert placement == Placement(2, 1, per_machine, local_rank, address)
    assert (placement.size, placement.first_rank) == (size, rank)
    assert find_placement(config("NUM_GPUS", gpus), environment, THERE).address == "first:9999"
    later = find_placement(config("NUM_GPUS", gpus), environment | {"SLURM_STEP_ID": "1"})
    assert later.address not in (None, address)


@pytest.mark.parametrize(
    ("listed", "first"),
    [("a-1,b2", "a-1"), ("gpu[07,11]-ib", "gpu07-ib"), ("127.0.0.[2-4]", "127.0.0.2")],
)
def test_ranks_meet_on_the_first_machine_of_a_step(listed, first):
    environment = ONE_TASK_A_GPU | {"SLURM_STEP_NODELIST": listed}
    address = find_placement(config("NUM_GPUS", 8), environment).address
    assert address.startswith(f"{first}:")


@pytest.mark.parametrize(("cores", "sharing"), [(32, "8"), (4, "1")])
def test_tasks_of_srun_share_the_machine_s_cores_or_have_their_own(monkeypatch, cores, sharing):
    monkeypatch.setattr(placement_module, "available_cores", lambda: cores)
    environment = ONE_TASK_A_GPU | {"SLURM_CPUS_ON_NODE": "32"}
    assert find_placement(config("NUM_GPUS", 8), environment, THERE).variables(3) == {
        "RANK": "11",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": sharing,
        "MASTER_ADDR": "first",
        "MASTER_PORT": "9999",
    }


@pytest.mark.parametrize(
    ("environment", "keys", "init_method", "said"),
    [
        (TORCHRUN, ["NUM_SHARDS", 2, "SHARD_ID", 5], None, "SHARD_ID is 5, .* remove both keys"),
        (TORCHRUN, ["NUM_GPUS", 4], None, "starts 8 processes on each machine, but NUM_GPUS is 4"),
        (TORCHRUN, [], THERE, "Remove --init-method"),
        (TORCHRUN | RESTARTS, [], None, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        (ONE_TASK_A_GPU, ["NUM_SHARDS", 3], None, "NUM_SHARDS is 3"),
        (ONE_TASK_A_GPU | {"SLURM_STEP_NUM_TASKS": "15"}, [], None, "15 tasks on 2 machines"),
        ({}, ["NUM_SHARDS", 2, "SHARD_ID", 2], THERE, "SHARD_ID must be from 0 to NUM_SHARDS - 1"),
        ({}, ["SHARD_ID", 1], None, "NUM_SHARDS is 1 and SHARD_ID is 1, but"),
    ],
)
def test_launchers_that_contradict_each_other(environment, keys, init_method, said):
    with pytest.raises(ValueError, match=said):
        find_placement(config("NUM_GPUS", 8, *keys), environment, init_method)


@pytest.mark.parametrize(
    "changes",
    [
        {"TORCHELASTIC_MAX_RESTARTS": "0"},
        {"TORCHELASTIC_USE_AGENT_STORE": "False"},
        {"GROUP_WORLD_SIZE": "1", "NUM_GPUS": "16"},
    ],
)
def test_torchrun_may_restart_where_no_old_address_is_read(changes):
    gpus = changes.get("NUM_GPUS", 8)
    assert find_placement(config("NUM_GPUS", gpus), TORCHRUN | RESTARTS | changes).size == 16


def test_the_port_of_a_step_follows_from_its_numbers_and_lies_below_the_ephemeral_ones():
    environment = ONE_TASK_A_GPU | {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "7"}
    assert find_placement(config("NUM_GPUS", 8), environment).address == "gpu07:20492"
    environment |= {"SLURM_JOB_ID": "247", "SLURM_STEP_ID": "41"}  # 97 × 247 + 41 = 24,000
    assert find_placement(config("NUM_GPUS", 8), environment).address == "gpu07:20000"
    del environment["SLURM_STEP_NODELIST"]
    assert find_placement(config("NUM_GPUS", 8), environment).address.startswith("localhost:")


@pytest.mark.parametrize(("cores", "owned"), [("16", False), ("17", True), (None, False)])
def test_a_task_has_cores_of_its_own_if_it_sees_fewer_than_the_machine_has(
    monkeypatch, cores, owned
):
    monkeypatch.setattr(placement_module, "available_cores", lambda: 16)
    environment = ONE_TASK_A_GPU | ({"SLURM_CPUS_ON_NODE": cores} if cores else {})
    assert find_placement(config("NUM_GPUS", 8), environment).has_cores is owned
    alone = ONE_TASK_A_MACHINE | {"SLURM_CPUS_ON_NODE": "17"}
    assert not find_placement(config("NUM_GPUS", 8), alone).has_cores, "it starts ranks itself"


def test_one_process_on_each_of_several_machines_is_a_rank():
    found = find_placement(config("NUM_GPUS", 0, "NUM_SHARDS", 2, "SHARD_ID", 1), {}, THERE)
    assert found == Placement(2, 1, 1, 0, "first:9999")
    with pytest.raises(ValueError, match="SHARD_ID is -1"):
        find_placement(config("NUM_GPUS", 0, "NUM_SHARDS", 2, "SHARD_ID", -1), {}, THERE)


@pytest.mark.parametrize("given", ["first:9999", "tcp://first", "tcp://:9", "file:///a"])
def test_another_form_of_rendezvous_is_refused(given):
    with pytest.raises(ValueError, match=r"must be tcp://HOST:PORT"):
        find_placement(config("NUM_GPUS", 8), {}, given)
