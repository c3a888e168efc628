"""Processes come together, each once, with one recipe; what is wrong is said in time."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from slowfast_patches.config import load_recipe
from slowfast_patches.launch.meeting import (
    ElsewhereError,
    StrangerError,
    arrive,
    check_open,
    enter_round,
)
from slowfast_patches.launch.stores import Address, JoiningError, connect, host
from slowfast_patches.utils.placement import Placement

LONG = 60.0
"""Seconds to wait for what comes."""


def placed(rank: int, size: int = 2, *, count: int = 1, launcher: str = "run_net") -> Placement:
    machines = size // count
    return Placement(launcher, size, machines, rank // count, rank, 0, count, "tcp://first:9999")


@pytest.fixture
def meet() -> Callable[..., list[BaseException | None]]:
    """`meet((placement, keys, seconds), ...)`: what each of them is told as they arrive, None where
    all is well; each in a thread, with a connection of its own."""
    server = host(0)  # for as long as `one` knows it

    def one(placement: Placement, keys: list[object], seconds: float) -> BaseException | None:
        store = connect(Address("tcp", "localhost", server.port), LONG)
        try:
            check_open(store, placement)
            arrive(store, placement, load_recipe(None, keys), seconds)
        except JoiningError as error:
            if not isinstance(error, StrangerError | ElsewhereError):
                store.set("failure", "{}")  # as launch does
            return error
        return None

    def all_of(*processes: tuple[Placement, list[object], float]) -> list[BaseException | None]:
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(lambda process: one(*process), processes))

    return all_of


def test_commands_of_one_process_or_several_meet(meet):
    assert meet((placed(0), [], LONG), (placed(1), [], LONG)) == [None, None]


def test_machines_differ_in_where_their_data_is(meet):
    keys = [
        ["DATA.PATH_PREFIX", f"/scratch{n}", "NUM_SHARDS", 2, "SHARD_ID", n, "NUM_GPUS", 8]
        for n in range(2)
    ]
    placements = [placed(0, 16, count=8), placed(8, 16, count=8)]
    assert meet(*((p, k, LONG) for p, k in zip(placements, keys, strict=True))) == [None, None]


def test_a_rank_that_does_not_come_is_named(meet):
    came = [placed(0, 8, count=2), placed(2, 8, count=2), placed(6, 8, count=2)]
    errors = meet(*((placement, [], 1.0) for placement in came))
    first = next(error for error in errors if not isinstance(error, ElsewhereError))
    here = re.escape(f"0 ({socket.gethostname()}), 1 ({socket.gethostname()}), 2 (")
    assert re.search(rf"ranks 4, 5 of 8 did not come within 1 s .* are ranks {here}", str(first))
    assert all(isinstance(error, JoiningError) for error in errors)


def test_a_rank_that_is_taken(meet):
    errors = meet((placed(0, 3), [], LONG), (placed(1, 3), [], LONG), (placed(1, 3), [], LONG))
    said = [str(error) for error in errors if not isinstance(error, ElsewhereError)]
    assert len(said) == 1, "the others end at once, though nobody waits in vain"
    assert "two processes of this run are rank 1: process" in said[0]
    assert "--shard-id" in said[0]


def test_another_number_of_processes(meet):
    errors = meet((placed(0), [], LONG), (placed(1, 4), [], LONG))
    assert isinstance(errors[0], ElsewhereError)
    assert re.match(r"rank 1 \(process .*\) is one of 4 processes, rank 0 .* of 2", str(errors[1]))


def test_another_recipe_is_told_key_by_key(meet):
    other = ["SOLVER.BASE_LR", 0.3, "OUTPUT_DIR", "elsewhere"]
    errors = meet((placed(0), [], LONG), (placed(1), other, LONG))
    assert isinstance(errors[0], ElsewhereError)
    assert "  OUTPUT_DIR: 'elsewhere' here, './tmp' there\n" in str(errors[1])
    assert "  SOLVER.BASE_LR: 0.3 here, 0.1 there\n" in str(errors[1])
    assert str(errors[1]).count(" here, ") == 2


def test_a_stranger_does_not_disturb_a_run(meet):
    assert meet((placed(0), [], LONG), (placed(1), [], LONG)) == [None, None]
    (stranger,) = meet((placed(1), ["OUTPUT_DIR", "elsewhere"], LONG))
    assert isinstance(stranger, StrangerError)
    assert "is complete; give this one another place with --init-method" in str(stranger)


def test_a_file_of_an_earlier_run_is_told(tmp_path):
    path = tmp_path / "meet"
    placement = Placement("run_net", 2, 2, 0, 0, 0, 1, f"file://{path}")
    for said in ("rank 1 of 2 did not come", f"remove file://{path} if an earlier run"):
        store = connect(Address.parse(f"file://{path}"), LONG)
        with pytest.raises(JoiningError, match=said):
            arrive(store, placement, load_recipe(None), 0.5)


def test_processes_that_torchrun_starts_again_forget_those_before():
    """Rank 1 of the first start has asked, and died; its number on the second is another's."""
    store, placements = dist.HashStore(), [placed(r, 3, launcher="torchrun") for r in range(3)]
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(enter_round, store, placements[rank], LONG) for rank in (1, 2)]
        first, welcome = enter_round(store, placements[0], LONG)
        while not all(future.done() for future in asked):
            welcome()
        assert [future.result()[0] for future in asked] == [first] * 2
        again = [pool.submit(enter_round, store, placements[rank], LONG) for rank in (1, 2)]
        second, welcome = enter_round(store, placements[0], LONG)
        while not all(future.done() for future in again):
            welcome()
        assert [future.result()[0] for future in again] == [second] * 2
    assert first != second


def test_nobody_names_a_start():
    with pytest.raises(JoiningError, match=r"rank 0 did not come within 0\.3 s"):
        enter_round(dist.HashStore(), placed(1, launcher="torchrun"), 0.3)


# Where they meet.


def test_a_port_in_use():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JoiningError, match=f"port {port} of this machine .* is in use"):
            host(port)


def test_nobody_answers(free_port):
    address, start = Address("tcp", "127.0.0.1", free_port()), time.monotonic()
    with pytest.raises(JoiningError, match=f"rank 0 did not answer at {address} within 0.5 s"):
        connect(address, 0.5)
    assert time.monotonic() - start < LONG


def test_a_host_that_nobody_knows():
    with pytest.raises(JoiningError, match=r"tcp://nowhere.invalid:9999"):
        connect(Address("tcp", "nowhere.invalid", 9999), 0.5)


def test_something_else_answers():
    """A server that closes every connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=close_all, args=(server,), daemon=True)
        thread.start()
        with pytest.raises(JoiningError, match="is no process of this run"):
            connect(Address("tcp", "127.0.0.1", server.getsockname()[1]), 2.0)


def close_all(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # until the server is closed
        while True:
            server.accept()[0].close()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(JoiningError, match="nowhere is no folder"):
        connect(Address.parse(f"file://{tmp_path}/nowhere/meet"), 0.5)


@pytest.mark.parametrize(
    "url", ["first:9999", "tcp://first", "tcp://first:x", "file://", "udp://a:1"]
)
def test_addresses_that_are_none(url):
    with pytest.raises(ValueError, match=f"--init-method {url}: processes meet at tcp://HOST:PORT"):
        Address.parse(url)


def test_addresses():
    assert Address.parse("tcp://[::1]:9999") == Address("tcp", "::1", 9999)
    assert str(Address.parse("file:///shared/meet")) == "file:///shared/meet"
    assert Path(Address.parse("file:///shared/meet").path) == Path("/shared/meet")
    assert isinstance(host(0), dist.TCPStore)
