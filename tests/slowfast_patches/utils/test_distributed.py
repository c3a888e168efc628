"""Collective operations of one process, and of two of which the second is made up."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slowfast_patches.utils import distributed
from slowfast_patches.utils.distributed import (
    World,
    broadcast_from_main,
    gather_objects,
    max_over_ranks,
    sum_over_ranks,
    wait_for_all,
)
from slowfast_patches.utils.interruption import TrainingInterruptedError


def test_the_main_process_is_the_one_of_rank_0():
    cpu = torch.device("cpu")
    assert [World(rank, 2, cpu).is_main for rank in (0, 1)] == [True, False]
    assert World(1, 2, cpu).local_rank == 0


def test_alone_every_collective_is_the_value_itself():
    values = torch.tensor([1.0, -2.0])
    assert sum_over_ranks(values) is values
    assert max_over_ranks(values) is values
    assert values.tolist() == [1, -2]
    assert gather_objects("a") == ["a"]
    assert broadcast_from_main(lambda: 7) == 7


@pytest.fixture
def second(monkeypatch) -> Callable[..., list[str]]:
    """Return `second(rank, values, content)`, which makes up the other of two processes.

    It returns the list of calls, to which later calls are added.
    """

    def make(rank: int = 0, values: Any = None, content: Any = None) -> list[str]:
        calls = list[str]()

        def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
            joined = torch.stack([tensor, values])
            tensor.copy_(joined.sum(0) if op == dist.ReduceOp.SUM else joined.max(0).values)

        def gather(gathered: list[Any], own: Any) -> None:
            gathered[rank], gathered[1 - rank] = own, content

        def broadcast(made: list[Any], src: int, group: Any) -> None:
            assert (src, group) == (0, "group")
            calls.append("broadcast")
            if rank == 1:
                made[0] = content

        def new_group(backend: str, timeout: timedelta) -> str:
            calls.append(f"{backend} for {timeout.total_seconds():.0f} s")
            return "group"

        fakes = {
            "is_initialized": lambda: True,
            "get_world_size": lambda: 2,
            "get_rank": lambda: rank,
            "all_reduce": all_reduce,
            "all_gather_object": gather,
            "broadcast_object_list": broadcast,
            "new_group": new_group,
            "destroy_process_group": lambda group: calls.append(f"end of {group}"),
            "barrier": lambda group: calls.append(f"barrier of {group}"),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(distributed.dist, name, fake)
        return calls

    return make


def test_sums_and_maxima_are_in_place(second):
    second(values=torch.tensor([3.0, 1.0]))
    values = torch.tensor([1.0, 2.0])
    assert sum_over_ranks(values) is values
    assert values.tolist() == [4, 3]
    values = torch.tensor([1.0, 2.0])
    assert max_over_ranks(values) is values
    assert values.tolist() == [3, 2]


def test_objects_are_in_the_order_of_the_ranks(second):
    second(rank=1, content="of 0")
    assert gather_objects("of 1") == ["of 0", "of 1"]


def test_what_the_main_process_makes_is_that_of_all(second):
    week = f"gloo for {7 * 86400} s"
    calls = second()
    assert broadcast_from_main(lambda: "made") == "made"
    assert calls == [week, "broadcast", "end of group"]
    second(rank=1, content="of 0")
    assert broadcast_from_main(lambda: pytest.fail("only rank 0 makes it")) == "of 0"


def test_a_stop_of_the_main_process_stops_all_and_other_errors_only_itself(second):
    def stop() -> None:
        raise TrainingInterruptedError("stopped")

    def fail() -> None:
        raise OSError("gone")

    calls = second()
    with pytest.raises(TrainingInterruptedError, match="stopped"):
        broadcast_from_main(stop)
    assert "broadcast" in calls
    second(rank=1, content=TrainingInterruptedError("stopped"))
    with pytest.raises(TrainingInterruptedError, match="stopped"):
        broadcast_from_main(lambda: None)
    calls = second()
    with pytest.raises(OSError, match="gone"):
        broadcast_from_main(fail)
    assert calls == [f"gloo for {7 * 86400} s"], "the group stays, so that others wait"


def test_processes_wait_for_each_other_as_long_as_they_are_told(second):
    calls = second()
    wait_for_all(timedelta(seconds=5))
    assert calls == ["gloo for 5 s", "barrier of group", "end of group"]
