"""The steps of a launch in this process: who becomes a rank, how ranks meet, and how they end."""

from __future__ import annotations

import logging
import os
import resource
import signal
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import values_by_key
from slowfast_patches.launch import launch as module
from slowfast_patches.launch.launch import launch, resolve
from slowfast_patches.launch.placement import Placement
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import RunError, UserError
from slowfast_patches.utils.interruption import TrainingInterruptedError

FIRST = {"MASTER_ADDR": "first", "MASTER_PORT": "7", "RANK": "3"}


def recipe(*pairs):
    return load_recipe(None, ["NUM_GPUS", 0, *pairs])


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """An environment without a launcher, which is restored with the signals and the limit."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    handlers = {number: signal.getsignal(number) for number in module.STOP_SIGNALS}
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    for number, handler in handlers.items():
        signal.signal(number, handler)


# --- who becomes a rank


def test_the_values_of_the_machine_are_filled_in():
    found = resolve(recipe(), Placement(3, 2, 4, None, "first:7"))
    assert (found.num_shards, found.shard_id, found.processes_per_machine) == (3, 2, 4)
    assert resolve(recipe("NUM_SHARDS", 2, "SHARD_ID", 1)).shard_id == 1


def test_a_single_process_checks_and_runs_at_once():
    done = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    launch(recipe(), None, lambda *given: done.append(given), lambda *given: done.append(given))
    (checked, placement), (run, world) = done
    assert checked is run
    assert placement == Placement(1, 0, 1, 0)
    assert (world.rank, world.size, world.device.type) == (0, 1, "cpu")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_single_process_has_the_first_device(monkeypatch):
    asked, worlds = [], []
    monkeypatch.setattr(module, "process_device", lambda *given: asked.append(given) or "device")
    launch(recipe(), None, lambda recipe, world: worlds.append(world))
    assert [local_rank for _, local_rank in asked] == [0]
    assert worlds == [World(0, 1, "device")]


def test_what_the_check_refuses_is_not_run():
    def refuse(*_):
        raise UserError("No.")

    with pytest.raises(UserError, match="No"):
        launch(recipe(), None, pytest.fail, refuse)


def test_several_machines_need_a_rendezvous():
    with pytest.raises(UserError, match=r"NUM_SHARDS is 2, but there is no rendezvous"):
        launch(recipe("NUM_SHARDS", 2), None, pytest.fail)


@pytest.mark.parametrize("by", ["torchrun", "srun", "shell"])
def test_a_rank_of_a_launcher_works_and_a_shell_starts_ranks(by, monkeypatch):
    called = []
    for name in ("_work", "_start_ranks"):
        monkeypatch.setattr(module, name, lambda *given, name=name: called.append((name, given)))
    gpus, address = 0, None
    if by == "torchrun":
        os.environ |= FIRST | {"TORCHELASTIC_RUN_ID": "a", "GROUP_WORLD_SIZE": "1"}
        os.environ |= {"WORLD_SIZE": "4"}
    elif by == "srun":
        os.environ |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
        os.environ |= {"SLURM_NODEID": "1", "SLURM_LOCALID": "1", "SLURM_CPUS_ON_NODE": "0"}
        address = "tcp://first:7"
    else:
        gpus = 2
    launch(recipe("NUM_GPUS", gpus), address, print)
    ((name, given),) = called
    if by == "shell":
        assert name == "_start_ranks"
        assert given[0] == Placement(1, 0, 2, None)
        assert given[2] is print
        return
    local_rank, of_ranks, resolved, main = given
    assert (name, main, resolved.processes_per_machine) == (
        "_work",
        print,
        4 if by == "torchrun" else 2,
    )
    if by == "torchrun":
        assert (local_rank, of_ranks) == (3, {3: {}}), "torchrun has set the variables"
    else:
        assert local_rank == 1
        assert of_ranks[1]["RANK"] == "3"
        assert of_ranks[1]["MASTER_PORT"] == "7"


# --- the process that starts ranks


class Ranks:
    """Processes that end after some calls of `join`, or fail with an error."""

    def __init__(self, joins, error=None):
        self.joins, self.error, self.grace = joins, error, []

    def join(self, grace_period):
        self.grace.append(grace_period)
        self.joins -= 1
        if self.joins == 0 and self.error:
            raise self.error
        return self.joins == 0


@pytest.fixture
def started(monkeypatch):
    """`started(placement, ranks)`: what `start_processes` is called with."""

    def start(placement, ranks, during=lambda: None):
        given = []

        def start_processes(*arguments, **options):
            assert tracked, "the resource tracker starts before signals are blocked"
            given.append((arguments, options))
            during()
            return ranks

        monkeypatch.setattr(module, "start_processes", start_processes)
        tracked = []
        monkeypatch.setattr(
            module.resource_tracker, "ensure_running", lambda: tracked.append("it runs")
        )
        module.finished.clear()
        module._start_ranks(placement, recipe(), print)
        return given[0]

    yield start
    module.finished.clear()


def test_ranks_of_one_machine_meet_in_a_store_of_the_process_that_starts_them(started):
    ranks = Ranks(3)
    (work, given, count, wait), options = started(Placement(1, 0, 2, None), ranks)
    of_ranks, _, main = given
    assert (work, main, count, wait) == (module._work, print, 2, False)
    assert options == {"start_method": "spawn"}
    assert [of_ranks[rank]["RANK"] for rank in range(2)] == ["0", "1"]
    assert {one["TORCHELASTIC_USE_AGENT_STORE"] for one in of_ranks.values()} == {"True"}
    assert {one["MASTER_ADDR"] for one in of_ranks.values()} == {"127.0.0.1"}
    assert int(of_ranks[0]["MASTER_PORT"]) > 0
    assert len(ranks.grace) == 3, "it waits until all have ended"
    assert module.finished.is_set()
    level = logging.getLogger("torch.multiprocessing.spawn").level
    assert level == logging.ERROR, "torch does not warn of ranks that this process ends"


def test_ranks_of_several_machines_meet_where_they_are_told(started):
    (_, given, *_), _ = started(Placement(2, 1, 3, None, "first:7"), Ranks(1))
    ranks = given[0]
    assert [one["RANK"] for one in ranks.values()] == ["3", "4", "5"]
    assert ranks[2]["MASTER_ADDR"] == "first"
    assert ranks[2]["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_the_first_signal_is_passed_on_as_sigterm_and_a_second_ctrl_c_kills(started, monkeypatch):
    told = []
    child = SimpleNamespace(
        terminate=lambda: told.append("terminate"), kill=lambda: told.append("kill")
    )
    monkeypatch.setattr(module.multiprocessing, "active_children", lambda: [child])

    class Interrupted(Ranks):
        def join(self, grace_period):
            signal.raise_signal(self.signals.pop(0))
            return super().join(grace_period)

    ranks = Interrupted(2)
    ranks.signals = [signal.SIGTERM, signal.SIGINT]
    started(Placement(1, 0, 2, None), ranks)
    assert told == ["terminate", "terminate"]
    ranks = Interrupted(2)
    ranks.signals = [signal.SIGINT, signal.SIGINT]
    with pytest.raises(KeyboardInterrupt):
        started(Placement(1, 0, 2, None), ranks)
    assert told[2:] == ["terminate", "kill"]


def exited(code, name=None):
    return ProcessExitedException("text", 1, 99, code, name)


@pytest.mark.parametrize(
    ("error", "received", "raised", "text"),
    [
        (exited(3), [], SystemExit, "^3$"),
        (exited(0), [], SystemExit, "^0$"),
        (exited(-9, "SIGKILL"), [], RunError, r"rank 5 was killed by SIGKILL\. .*out of memory"),
        (exited(-11, "SIGSEGV"), [], RunError, "rank 5 was killed by SIGSEGV$"),
        (exited(-15, "SIGTERM"), [], TrainingInterruptedError, "SIGTERM"),
        (exited(-15, "SIGTERM"), [signal.SIGINT], KeyboardInterrupt, "^$"),
        (exited(-2, "SIGINT"), [signal.SIGTERM], TrainingInterruptedError, "SIGINT"),
    ],
)
def test_how_a_rank_ended_is_told(error, received, raised, text):
    with pytest.raises(raised, match=text):
        module._raise_for(error, 5, received)


def test_a_rank_that_fails_is_named_by_its_number_among_all(started):
    with pytest.raises(RunError, match="rank 7 was killed"):
        started(Placement(3, 2, 3, None, "first:7"), Ranks(2, exited(-9, "SIGKILL")))


# --- a rank


@pytest.fixture
def work(monkeypatch):
    """`work(main)`: the steps of a rank whose process group is a stand-in."""

    def run(main, pairs=(), of_ranks=None):
        steps = []
        monkeypatch.setattr(module, "_join", lambda *given: steps.append("join"))
        monkeypatch.setattr(module.dist, "get_world_size", lambda: 4)
        monkeypatch.setattr(module.dist, "destroy_process_group", lambda: steps.append("leave"))
        monkeypatch.setattr(module, "wait_for_all", lambda patience: steps.append(patience))
        monkeypatch.setattr(module, "_end", lambda *given: steps.append(given))
        module._work(1, of_ranks or {1: FIRST}, recipe("DIST_TIMEOUT_SECONDS", 60, *pairs), main)
        return steps

    return run


def test_a_rank_joins_works_waits_for_the_others_and_leaves(work):
    seen = []
    steps = work(lambda recipe, world: seen.append(world))
    assert seen == [World(3, 4, torch.device("cpu"), 1)]
    assert steps == ["join", timedelta(seconds=60), "leave"]
    assert os.environ["MASTER_ADDR"] == "first"
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_a_rank_hears_the_signals_that_it_could_not_handle_when_it_was_started(work):
    blocked = []
    signal.pthread_sigmask(signal.SIG_BLOCK, module.STOP_SIGNALS)
    try:
        work(lambda *_: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, module.STOP_SIGNALS)
    assert not blocked[0] & set(module.STOP_SIGNALS)


def test_programs_of_a_rank_import_files_of_their_folder_as_usual(work):
    found = []
    os.environ["PYTHONSAFEPATH"] = "1"  # as the process that starts the ranks sets it
    work(lambda *_: found.append(os.environ.get("PYTHONSAFEPATH")))
    assert found == [None]


def test_an_interrupted_rank_waits_and_a_rank_that_fails_ends_at_once(work):
    error = TrainingInterruptedError("stopped")

    def interrupted(*_):
        raise error

    assert work(interrupted) == ["join", timedelta(seconds=60), (error, 3, 1)]
    mistake = UserError("No.")

    def fail(*_):
        raise mistake

    assert work(fail) == ["join", (mistake, 3, 1)]


def test_a_rank_imports_the_users_modules_before_it_joins(work, monkeypatch):
    monkeypatch.setattr(module, "import_modules", lambda names: 1 / len(names))
    (step,) = work(pytest.fail)
    assert isinstance(step[0], ZeroDivisionError)


@pytest.fixture
def join(monkeypatch):
    """`join(pairs, error)`: what the process group of a rank is made with."""

    def run(pairs=(), error=None):
        store = SimpleNamespace(set_timeout=lambda timeout: seen.update(waits=timeout))
        seen = {}

        def rendezvous(url, timeout):
            seen.update(url=url, meets=timeout)
            if error:
                raise error
            yield store, 3, 4

        def prefixed(prefix, inner):
            seen.update(prefix=prefix)
            return inner

        monkeypatch.setattr(module.dist, "rendezvous", rendezvous)
        monkeypatch.setattr(module.dist, "PrefixStore", prefixed)
        monkeypatch.setattr(
            module.dist,
            "init_process_group",
            lambda backend, **given: seen.update(given, backend=backend),
        )
        monkeypatch.setattr(module, "_check_same_recipe", lambda recipe: seen.update(same=True))
        os.environ |= FIRST
        module._join(recipe("DIST_JOIN_SECONDS", 20, "DIST_TIMEOUT_SECONDS", 60, *pairs), 0)
        return seen

    return run


def test_a_rank_joins_with_the_timeouts_of_the_recipe(join):
    seen = join()
    assert (seen["url"], seen["meets"]) == ("env://", timedelta(seconds=20))
    assert seen["waits"] == seen["timeout"] == timedelta(seconds=60)
    assert (seen["rank"], seen["world_size"], seen["backend"]) == (3, 4, "gloo")
    assert seen["same"]
    assert "prefix" not in seen


@pytest.mark.parametrize(("asked", "backend"), [("auto", "nccl"), ("gloo", "gloo")])
def test_gpus_exchange_by_the_backend_of_the_recipe(join, asked, backend):
    assert join(("NUM_GPUS", 2, "DIST_BACKEND", asked))["backend"] == backend


def test_ranks_that_are_started_again_use_other_keys_of_the_store(join):
    os.environ |= {"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert join()["prefix"] == "2"
    del os.environ["TORCHELASTIC_RESTART_COUNT"]
    assert join()["prefix"] == "0"
    os.environ["GROUP_WORLD_SIZE"] = "2"
    assert "prefix" not in join()


def test_ranks_that_do_not_meet_are_told_where_and_how_long(join):
    with pytest.raises(
        RunError, match=r"meet at first:7 within DIST_JOIN_SECONDS \(20 s\)"
    ) as told:
        join(error=module.dist.DistNetworkError("no"))
    assert told.value.everywhere


def test_recipes_that_differ_are_told_with_the_rank_and_the_key(monkeypatch):
    mine = recipe()
    others = [recipe(), recipe("SOLVER.BASE_LR", 0.5)]

    def gather(values):
        return [values, *(values_by_key(one) for one in others)]

    monkeypatch.setattr(module, "gather_objects", gather)
    with pytest.raises(RunError, match=r"rank 2 \(here\) .* rank 0 \(there\): .*BASE_LR") as told:
        module._check_same_recipe(mine)
    assert told.value.everywhere
    others[1] = recipe("SHARD_ID", 1, "NUM_SHARDS", 2)
    others[1] = others[1].replaced({"NUM_SHARDS": 1})
    module._check_same_recipe(mine)


# --- the end of a rank


@pytest.fixture
def end(monkeypatch):
    """`end(error, rank, local_rank)`: the exit status, and what is done before."""

    def run(error, rank, local_rank):
        done = []
        monkeypatch.setattr(module.time, "sleep", lambda seconds: done.append(seconds))
        monkeypatch.setattr(
            module, "report", lambda error, before, terminal: done.append((before, terminal))
        )
        monkeypatch.setattr(module, "exit_status", lambda error: 11)
        monkeypatch.setattr(logging, "shutdown", lambda: done.append("logged"))
        child = SimpleNamespace(kill=lambda: done.append("killed"))
        monkeypatch.setattr(module.multiprocessing, "active_children", lambda: [child])
        monkeypatch.setattr(os, "_exit", lambda status: done.append(status))
        module._end(error, rank, local_rank)
        assert done[-3:] == ["logged", "killed", 11]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        return done[:-3]

    return run


@pytest.mark.parametrize(
    ("error", "rank", "local_rank", "told"),
    [
        (UserError("mine"), 5, 1, True),  # each rank has an error of its own
        (RunError("all", everywhere=True), 5, 1, False),
        (RunError("all", everywhere=True), 4, 0, True),
        (TrainingInterruptedError("stopped"), 4, 0, False),
        (TrainingInterruptedError("stopped"), 0, 0, True),
    ],
)
def test_an_error_is_reported_by_those_whose_it_is(end, error, rank, local_rank, told):
    assert end(error, rank, local_rank) == [(f"rank {rank}: ", told)]


@pytest.mark.parametrize("local_rank", [0, 1])
def test_who_lost_another_rank_waits_for_the_cause(end, monkeypatch, local_rank):
    monkeypatch.setattr(module, "is_lost_rank", lambda error: True)
    assert end(RuntimeError("lost"), 4, local_rank) == [5.0, ("rank 4: ", local_rank == 0)]


def test_a_report_that_fails_ends_the_rank_all_the_same(monkeypatch):
    ended = []
    monkeypatch.setattr(module, "report", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(ZeroDivisionError):
        module._end(UserError("No."), 0, 0)
    assert ended == [2]


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_port_that_never_answers_ends_a_rank_with_the_error(join, monkeypatch, local_rank):
    """The timer waits five seconds longer than torch, and is stopped once the ranks have met."""
    timers, ended = [], []

    class Timer:
        def __init__(self, seconds, function):
            self.seconds, self.function, self.did = seconds, function, []
            timers.append(self)

        def start(self):
            self.did.append("start")

        def cancel(self):
            self.did.append("cancel")

    monkeypatch.setattr(module, "Timer", Timer)
    join()
    module._join(recipe("DIST_JOIN_SECONDS", 20), local_rank)
    assert [(timer.seconds, timer.did) for timer in timers] == [(25.0, ["start", "cancel"])] * 2
    monkeypatch.setattr(module, "report", lambda error, terminal: (str(error)[:33], terminal))
    monkeypatch.setattr(os, "_exit", ended.append)
    timers[-1].function()
    assert ended == [("the processes of this run did not", local_rank == 0)]
    with pytest.raises(RunError):
        join(error=module.dist.DistNetworkError("no"))
    assert timers[-1].did == ["start", "cancel"]
