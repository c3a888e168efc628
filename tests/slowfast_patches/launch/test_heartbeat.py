"""What the log says while a piece of work takes too long."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multigrid.batchnorm import wait_for_neighbours
from slowfast_patches.launch import pulse as pulse_module
from slowfast_patches.launch.alarm import Alarm, Heard, Limits
from slowfast_patches.launch.heartbeat import Heartbeat
from slowfast_patches.launch.pulse import Pulse, State, WatchedBatches, note_communication
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.utils.distributed import World

WORKER = Path(__file__).with_name("heartbeat_worker.py")
CPU = torch.device("cpu")
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="slowfast_patches")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`now(t)`: let it be so many seconds for a pulse."""
    times = [0.0]

    class Time:
        perf_counter = staticmethod(lambda: times[-1])

    monkeypatch.setattr(pulse_module, "time", Time)
    return times.append


# What a process is at.


def test_a_median_is_of_the_recent_work_of_a_kind(now):
    pulse = Pulse()
    assert pulse.state() == State("the start", "other", 0.0, None)
    at = 0.0
    for number, seconds in enumerate([100.0, *[2.0, 7.0] * 4, 3.0]):
        pulse.begin(f"iteration {number}", None if number == 0 else number % 2)
        at += seconds
        now(at)
    # odd ones took 2, 2, 2, 2 and the one that is not over; of even ones 7, 7, 7, 7
    assert pulse.state() == State("iteration 9", "other", 3.0, None)
    pulse.begin("iteration 10", 0)
    assert pulse.state().usual is None  # of four
    pulse.begin("iteration 11", 1)
    assert pulse.state() == State("iteration 11", "other", 0.0, 2.0)


def test_old_work_is_forgotten(now):
    pulse = Pulse()
    for number in range(1, 200):
        pulse.begin(f"iteration {number}", "shape")
        now(number if number < 149 else 148 + 5 * (number - 148))
    pulse.begin("next", "shape")
    assert pulse.state().usual == 5


def test_the_clock_notes_what_goes_on():
    clock, seen = Clock(), []
    clock.pulse.begin("iteration 3", "shape")
    with clock.wait(CPU):
        seen.append(clock.pulse.state()[:2])
    with clock.time("training"):
        seen.append(clock.pulse.state()[:2])
    with clock.time("evaluating"):
        seen.append(clock.pulse.state()[:2])
    seen.append(clock.pulse.state()[:2])
    assert seen == [
        ("iteration 3", "loading"),
        ("iteration 3", "training"),
        ("evaluating", "evaluating"),
        ("evaluating", "other"),
    ]


def test_each_mini_batch_of_an_evaluation_is_a_piece_of_work():
    pulse, seen = Pulse(), []

    class Loader(list):
        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                seen.append(pulse.state()[:2])
                yield item

    batches = WatchedBatches(Loader([5, 6]), pulse, "the test")
    with pulse.during("evaluating"):
        for batch in batches:
            seen.append((batch, *pulse.state()[:2]))
    assert len(batches) == 2
    assert seen == [
        ("mini-batch 0 of the test", "loading"),
        (5, "mini-batch 0 of the test", "evaluating"),
        ("mini-batch 1 of the test", "loading"),
        (6, "mini-batch 1 of the test", "evaluating"),
    ]
    assert pulse.state().name == "the end of the test"


def test_after_the_gradients_comes_communication_until_the_optimizer_steps():
    pulse, seen = Pulse(), list[str]()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    note_communication(pulse, model, optimizer)
    model[1].weight.register_hook(lambda _: seen.append(pulse.activity))
    with pulse.during("training"):
        for _ in range(2):
            loss = model(torch.ones(1, 2)).sum()
            seen.append(pulse.activity)
            loss.backward()
            seen.append(pulse.activity)
            optimizer.step()
            seen.append(pulse.activity)
    assert seen == ["training", "training", "communicating", "training"] * 2
    assert pulse.activity == "other"
    model.require_backward_grad_sync = False  # as DDP's, in parts of a mini-batch but the last
    with pulse.during("training"):
        model(torch.ones(1, 2)).sum().backward()
        assert pulse.activity == "training"


def test_a_wait_in_a_backward_pass_is_communication():
    """As that of grouped BN, in a thread of torch's own on a GPU."""
    begun, over, pulse = threading.Event(), threading.Event(), Pulse()

    class Work:
        def wait(self) -> None:
            begun.set()
            assert over.wait(PATIENCE)

    waits = threading.Thread(target=wait_for_neighbours, args=(Work(),))
    waits.start()
    assert begun.wait(PATIENCE)
    with pulse.during("training"):
        assert pulse.state().activity == "communicating"
        over.set()
        waits.join(PATIENCE)
        assert pulse.state().activity == "training"


# What is said of it.


def heard(*states: tuple[str, float], name: str = "iteration 812") -> dict[int, Heard]:
    """Of ranks at one iteration, whose median is 4 s: activity and seconds."""
    return {
        rank: Heard(State(name, activity, seconds, 4.0), 1.0)
        for rank, (activity, seconds) in enumerate(states)
    }


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records]


@pytest.mark.parametrize(
    ("seconds", "usual", "is_late"),
    [
        (39.0, 4.0, False),
        (41.0, 4.0, True),
        (4.9, 0.02, False),  # 245 times as long, but a trifle
        (5.1, 0.02, True),
        (599.0, None, False),
        (601.0, None, True),
    ],
)
def test_what_is_late(seconds, usual, is_late):
    assert Limits().is_late(State("iteration 1", "training", seconds, usual)) == is_late


def test_one_process_says_what_it_waits_for(caplog):
    Alarm(Limits()).look(heard(("loading", 41.0)), 100.0)
    assert said(caplog) == [
        "iteration 812 has taken 41 s, 10 times the median of 4 s: it waits for data"
    ]


def test_the_rank_that_the_others_wait_for_is_named_first(caplog):
    late = [("communicating", 41.0)] * 8
    late[3] = ("loading", 40.5)
    Alarm(Limits()).look(heard(*late), 100.0)
    assert said(caplog) == [
        "iteration 812 has taken 41 s, 10 times the median of 4 s: "
        "rank 3 waits for data; ranks 0-2, 4-7 wait in communication"
    ]


def test_what_goes_on_is_said_at_each_doubling_and_its_end_once(caplog):
    alarm = Alarm(Limits())
    for second in range(0, 200, 2):
        alarm.look(heard(("loading", float(second))), 1000.0 + second)
    for second in range(4):
        alarm.look(heard(("training", float(second)), name="iteration 813"), 1200.0 + second)
    assert [re.findall(r"has taken (\d+) s|after (\d+) s", line)[0] for line in said(caplog)] == [
        ("42", ""),
        ("84", ""),
        ("168", ""),
        ("", "200"),
    ]
    assert [r.levelname for r in caplog.records] == [*["WARNING"] * 3, "INFO"]
    assert said(caplog)[-1] == "iteration 812 went on after 200 s"


def test_who_waits_for_work_that_takes_its_time_says_nothing(caplog):
    states = heard(("other", 0.0), ("communicating", 90.0), ("communicating", 90.0))
    states[0] = Heard(State("saving", "saving", 85.0, None), 1.0)
    Alarm(Limits()).look(states, 100.0)
    assert said(caplog) == []
    states[0] = Heard(State("saving", "saving", 601.0, None), 1.0)
    Alarm(Limits()).look(states, 700.0)
    assert said(caplog) == [
        "saving has taken 601 s, and there is no median yet: rank 0 saves; "
        "ranks 1-2 wait in communication (iteration 812)"
    ]


def test_what_is_over_is_not_taken_up_again_by_a_rank_that_is_not_up_to_date(caplog):
    alarm, late = Alarm(Limits()), heard(("communicating", 60.0), ("loading", 60.0))
    alarm.look(late, 100.0)
    on_time = heard(("training", 1.0), ("training", 1.0), name="iteration 813")
    for now, ranks in enumerate([on_time[0], on_time[0]], start=102):
        alarm.look({0: ranks, 1: late[1]}, float(now))
    alarm.look(on_time, 104.0)
    assert [line.split(":")[0] for line in said(caplog)] == [
        "iteration 812 has taken 60 s, 15 times the median of 4 s",
        "iteration 812 went on after 62 s",
    ]
    alarm.look(late, 300.0)  # work of the same name, later, is late again
    assert len(said(caplog)) == 3


def test_where_all_wait_the_network_is_to_blame(caplog):
    Alarm(Limits()).look(heard(*[("communicating", 41.0)] * 2), 100.0)
    assert said(caplog)[0].endswith(": ranks 0-1 wait in communication")


def test_ranks_that_say_nothing_are_named_when_others_are_late(caplog):
    states = heard(("communicating", 30.0), ("training", 5.0), ("communicating", 30.0))
    states[1] = Heard(states[1].state, 11.0)
    Alarm(Limits()).look(states, 100.0)
    assert said(caplog) == []  # nobody is late
    states |= {r: Heard(states[r].state._replace(seconds=45.0), 0.0) for r in (0, 2)}
    Alarm(Limits()).look(states, 115.0)
    assert said(caplog)[0].endswith(
        ": rank 1 has not been heard of for 11 s; ranks 0, 2 wait in communication"
    )


def test_a_rank_that_is_done_is_neither_late_nor_missed(caplog):
    states = heard(("saving", 90.0), ("done", 90.0), ("loading", 1.0))
    states[0] = Heard(State("saving", "saving", 90.0, None), 1.0)
    states[1] = Heard(states[1].state, 90.0)
    Alarm(Limits()).look(states, 100.0)
    assert said(caplog) == []


# The watchdog.

FAST = Limits(factor=10, least=0.2, silence=PATIENCE, tick=0.02)


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run_some(pulse: Pulse) -> None:
    for number in range(9):
        pulse.begin(f"iteration {number}", "shape")
        time.sleep(0.001)


def test_the_log_is_written_while_it_lasts(caplog):
    pulse = Pulse()
    with Heartbeat(pulse, World(0, 1, CPU), FAST):
        run_some(pulse)
        with pulse.during("loading"):
            wait_until(lambda: said(caplog))
        pulse.begin("iteration 9", "shape")
        wait_until(lambda: len(said(caplog)) > 1)
    assert re.fullmatch(r"iteration 8 has taken .* s: it waits for data", said(caplog)[0])
    assert re.fullmatch(r"iteration 8 went on after \d+ s", said(caplog)[1])


def test_ranks_meet_in_the_store_while_another_thread_waits_in_it(caplog):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clients = [dist.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2)]
    pulses = [Pulse(), Pulse()]
    waits = threading.Thread(target=lambda: clients[1].wait(["go"], timedelta(seconds=PATIENCE)))
    waits.start()
    worlds = [World(rank, 2, CPU, dist.PrefixStore("run", clients[rank])) for rank in range(2)]
    with Heartbeat(pulses[0], worlds[0], FAST), Heartbeat(pulses[1], worlds[1], FAST):
        for pulse in pulses:
            run_some(pulse)
        with pulses[0].during("communicating"), pulses[1].during("saving"):
            wait_until(lambda: any("rank 1 saves; rank 0 waits in comm" in s for s in said(caplog)))
    assert waits.is_alive()
    server.set("go", "")
    waits.join(PATIENCE)
    assert not waits.is_alive()


def test_without_its_store_the_watchdog_ends_and_the_training_does_not(caplog):
    servers = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    client = dist.TCPStore("127.0.0.1", servers[0].port, is_master=False)
    pulse, world = Pulse(), World(1, 2, CPU, client)
    with Heartbeat(pulse, world, FAST):
        wait_until(lambda: servers[0].check(["heartbeat/1"]))
        servers.clear()
        wait_until(lambda: said(caplog))
        pulse.begin("iteration 1", "shape")
    assert said(caplog)[0].startswith("the heartbeat ends: DistNetworkError")
    assert [r.levelname for r in caplog.records] == ["DEBUG"]


# Processes.


class Ranks:
    """Three processes that train together; see the worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [sys.executable, str(WORKER), str(folder), port]
        self.processes = [subprocess.Popen([*command, str(rank)]) for rank in range(3)]

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def stall(self, rank: int, where: str) -> None:
        """Have a rank wait somewhere until `go_on`."""
        (self.folder / f"{where}{rank}").touch()

    def go_on(self, rank: int, where: str) -> None:
        (self.folder / f"{where}{rank}").unlink()

    def wait_for(self, pattern: str) -> None:
        wait_until(lambda: self.is_alive() and re.search(pattern, self.log))

    def is_alive(self) -> bool:
        assert [process.poll() for process in self.processes] == [None] * 3
        return True


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    try:
        ranks.wait_for("iteration 10 is done")
        yield ranks
    finally:
        (ranks.folder / "stop").touch()
        for stalled in ranks.folder.glob("*[0-2]"):  # where a test failed
            stalled.unlink()
        for process in ranks.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        codes = [process.wait(PATIENCE) for process in ranks.processes]
    assert codes == [0, 0, 0]


@pytest.mark.parametrize(
    ("rank", "where", "does"),
    [
        (2, "loading", "rank 2 waits for data; ranks 0-1 wait in communication"),
        (1, "computing", "rank 1 computes; ranks 0, 2 wait in communication"),
        (0, "computing", "rank 0 computes; ranks 1-2 wait in communication"),
    ],
)
def test_the_log_names_the_process_that_holds_the_others_up(ranks, rank, where, does):
    ranks.stall(rank, where)
    ranks.wait_for(rf"iteration \d+ has taken .* times the median of .*: {does}\n")
    (iteration,) = set(re.findall(rf"iteration (\d+) has taken .*: {does}\n", ranks.log))
    ranks.go_on(rank, where)
    ranks.wait_for(rf"iteration {iteration} went on after \d+ s")


def test_a_collective_in_the_forward_pass_is_communication(ranks):
    """As grouped BN has them: rank 1 waits for the neighbour there, rank 0 for both after it."""
    ranks.stall(2, "neighbour")
    ranks.wait_for(": rank 2 computes; ranks 0-1 wait in communication")
    ranks.go_on(2, "neighbour")


@pytest.mark.parametrize(("rank", "others"), [(2, "0-1"), (0, "1-2")])
def test_who_waits_for_the_others_in_an_evaluation_does_not_evaluate(ranks, rank, others):
    ranks.stall(rank, "evaluating")
    # they are a mini-batch further, or in the next iteration
    ranks.wait_for(f"has taken .*: rank {rank} evaluates[^;]*; ranks {others} wait in comm")
    ranks.go_on(rank, "evaluating")


def test_a_process_that_was_stopped_is_not_heard_of(ranks):
    ranks.processes[1].send_signal(signal.SIGSTOP)
    ranks.wait_for(r"rank 1 has not been heard of for \d+ s; ranks 0, 2 wait in communication")
    os.kill(ranks.processes[1].pid, signal.SIGCONT)
    ranks.wait_for(r"not been heard of [^$]*went on after")
