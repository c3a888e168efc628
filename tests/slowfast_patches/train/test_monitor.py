"""What a training says of the time that it waits for data."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from multigrid import Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches.train.record import clock as clock_module
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.train.record.monitor import Monitor
from slowfast_patches.train.record.window import Summary, Window
from slowfast_patches.utils.distributed import World

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ADVICE = "buy a faster disk"


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """One shape of 4 clips; two stages of 20 iterations and fine-tuning of none."""
    rate = SteppedRate((20.0, 40.0), (0.1, 0.01))
    return make_schedule(
        Shape(4, 8, 32), 4, rate, epoch_factor=1, long_cycle=(), short_cycle=(), bn_size=None
    )


def watch(
    folder: Path,
    schedule: Schedule,
    seconds: Mapping[int, tuple[float, float]],
    usual: tuple[float, float],
    start: int = 0,
    stop: int | None = None,
) -> list[dict]:
    """Phase records of a run whose iterations train and load so long, given by iteration."""
    clock = Clock({"training": 1000.0, "loading": 1000.0})
    monitor = Monitor(str(folder), schedule, clock, start, ADVICE)
    for step in schedule.steps(start, stop):
        training, loading = seconds.get(step.iteration, usual)
        clock.seconds["training"] += training
        clock.seconds["loading"] += loading
        clock.seconds["evaluating"] += 7
        monitor.observe(step)
    monitor.close()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == "phase"]


def said(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == level]


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_each_phase_says_what_its_time_went_to(tmp_path, schedule, caplog):
    assert [phase.stop for phase in schedule.phases] == [20, 40]
    # 4 clips an iteration: 20 clips/s of training alone; the second phase waits as long again
    slow = dict.fromkeys(range(20, 40), (0.2, 0.2))
    first, second = watch(tmp_path, schedule, slow, usual=(0.2, 0.0))
    assert (first["phase"], first["iteration"], first["iterations"]) == (0, 20, 20)
    assert (second["phase"], second["iteration"], second["clips"]) == (1, 40, 80)
    assert (first["seconds"], first["loading_share"]) == (pytest.approx(4), 0)
    assert (second["seconds"], second["loading_share"]) == (pytest.approx(8), 0.5)
    assert said(caplog, "INFO") == [
        "phase 1 of 2: 20 iterations took 4 s, 0 % of it waiting for data "
        "(reading gave 20.0 clips/s, training could take 20.0)",
        "phase 2 of 2: 20 iterations took 8 s, 50 % of it waiting for data "
        "(reading gave 10.0 clips/s, training could take 20.0)",
        "training: 40 iterations took 12 s, 33 % of it waiting for data "
        "(reading gave 13.3 clips/s, training could take 20.0)",
    ]


def test_where_loading_is_the_limit_a_warning_says_what_to_do(tmp_path, schedule, caplog):
    slow = dict.fromkeys(range(20, 40), (0.3, 0.2))
    watch(tmp_path, schedule, slow, usual=(1, 0.1))
    (warning,) = said(caplog, "WARNING")
    assert warning.startswith("loading was the limit of phase 2 of 2")
    assert "waited 40 % of the time" in warning
    assert warning.endswith(ADVICE)


@pytest.mark.parametrize(
    ("usual", "start"),
    [
        ((9.0, 1.0), 20),  # a tenth of the time
        ((0.01, 0.2), 20),  # four seconds
        ((1.0, 9.0), 31),  # nine iterations
    ],
)
def test_little_waiting_or_little_time_is_no_evidence(tmp_path, schedule, caplog, usual, start):
    (record,) = watch(tmp_path, schedule, {}, usual, start)
    assert record["iterations"] == 40 - start
    assert said(caplog, "WARNING") == []


def test_the_first_mini_batch_of_a_run_is_no_evidence(tmp_path, schedule, caplog):
    first, _ = watch(tmp_path, schedule, {0: (1.0, 500.0)}, usual=(1, 0))
    assert (first["seconds"], first["loading_share"]) == (pytest.approx(20), 0)
    assert said(caplog, "WARNING") == []


def test_a_report_waits_for_data_as_long_as_its_phase(tmp_path, schedule):
    clock = Clock()
    monitor, window = Monitor(str(tmp_path), schedule, clock, 0, ADVICE), Window(clock)
    for step in schedule.steps(0, 20):
        clock.seconds["loading"] += 3 if step.iteration else 500
        window.add(step, torch.tensor(0.5), None, 0)
        clock.seconds["training"] += 1
        if step.iteration == 19:
            monitor.progress(step, window.summarize(World(0, 1, CPU)))
        monitor.observe(step)
    monitor.close()
    records = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {r["type"]: r["loading_share"] for r in records} == {"train": 0.7403, "phase": 0.7403}


def test_a_continued_run_reports_what_it_saw_and_each_phase_once(tmp_path, schedule, caplog):
    watch(tmp_path, schedule, {}, usual=(1.0, 0.0), stop=30)
    caplog.clear()
    first, second = watch(tmp_path, schedule, {}, usual=(1.0, 1.0), start=25)
    assert (first["iteration"], first["iterations"]) == (20, 20)
    assert (second["iteration"], second["iterations"], second["clips"]) == (40, 15, 60)
    assert second["seconds"] == pytest.approx(15 + 14)  # the first of them as if it had not waited
    assert said(caplog, "INFO")[-1].startswith("training: 15 iterations took 29 s, 48 %")


# Several processes.


def report(folder: Path, schedule: Schedule, ranks: list[tuple[float, float]]) -> list[dict]:
    """Records of a run that reports every tenth of its 40 iterations, of 1 s on rank 0, in which
    each rank trains and loads so long."""
    clock = Clock()
    monitor = Monitor(str(folder), schedule, clock, 0, ADVICE)
    for step in schedule.steps():
        clock.seconds["training"] += 1
        if step.iteration % 10 == 9:
            monitor.progress(step, Summary(0.5, 40, None, [], ranks))
        monitor.observe(step)
    monitor.close()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_before_an_iteration_was_timed_what_is_left_is_not_known(tmp_path, schedule, caplog):
    monitor = Monitor(str(tmp_path), schedule, Clock(), 0, ADVICE)
    monitor.progress(schedule.at(0), Summary(0.5, 4, None, [], [(1.0, 0.0)]))
    monitor.close()
    assert said(caplog, "INFO")[0].endswith("waiting for data), not yet known what is left")


def test_the_rank_that_waits_most_for_data_is_told(tmp_path, schedule, caplog):
    records = report(tmp_path, schedule, [(10.0, 0.0), (7.5, 2.5), (9.0, 1.0)])
    assert [r["type"] for r in records] == [*["train"] * 2, "phase"] * 2
    assert {(r["worst_loading_share"], r["worst_loading_rank"]) for r in records} == {(0.25, 1)}
    assert {r["loading_share"] for r in records} == {0}
    lines = said(caplog, "INFO")
    assert lines[0].endswith("4.0 clips/s (0 % waiting for data, rank 1 most with 25 %), 30 s left")
    assert "0 % of it waiting for data, rank 1 most with 25 % (reading gave 4.0" in lines[2]
    warnings = said(caplog, "WARNING")
    assert [w.split(":")[0] for w in warnings] == [
        f"loading was the limit of phase {n} of 2, not the model" for n in (1, 2)
    ]
    assert all("rank 1 waited 25 % of the time" in w for w in warnings)


def test_one_process_has_no_rank_that_waits_most(tmp_path, schedule, caplog):
    records = report(tmp_path, schedule, [(1.0, 9.0)])
    assert not [r for r in records if "worst_loading_share" in r]
    assert "most" not in "".join(said(caplog, "INFO"))


def test_a_window_has_the_seconds_since_the_last(schedule):
    """But for the loading of the first iteration, in which the workers start."""
    clock, world = Clock({"training": 500.0, "loading": 100.0}), World(0, 1, CPU)
    window, spent = Window(clock), []
    for step in schedule.steps(0, 4):
        clock.seconds["loading"] += 50.0 if step.iteration == 0 else 2.0
        with clock.time("training"):
            clock.seconds["training"] += 3.0
            window.add(step, torch.tensor(1.0), None, 0)
            if step.iteration % 2:
                spent += window.summarize(world).spent
    # of the first 3 s, which are counted before the window looks, nothing; then all that is new
    assert spent == [pytest.approx((3, 2), abs=0.5), pytest.approx((6, 4), abs=0.5)]


# The clock.


def test_all_waiting_is_loading_on_the_cpu():
    clock = Clock()
    with clock.wait(CPU):
        time.sleep(0.02)
    assert clock.seconds["loading"] >= 0.02
    assert clock.seconds["training"] == clock.seconds["evaluating"] == 0


class Gpu:
    """A GPU that is busy until a moment, its events, and the time."""

    def __init__(self, busy_until: float) -> None:
        self.now, self.busy_until = 0.0, busy_until

    def perf_counter(self) -> float:
        return self.now

    def Event(self, *, enable_timing: bool) -> "Event":
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.reached = max(self.gpu.now, self.gpu.busy_until)

    def query(self) -> bool:
        return self.gpu.now >= self.reached

    def synchronize(self) -> None:
        assert self.query(), "the training waits for the GPU where nothing limits it"

    def elapsed_time(self, other: "Event") -> float:
        return 1000 * (other.reached - self.reached)


@pytest.mark.parametrize(("busy", "loading"), [(0, 6), (4, 2), (6, 0), (10, 0)])
def test_a_gpu_that_still_computes_is_not_waiting(monkeypatch, busy, loading):
    gpu = Gpu(busy_until=busy)
    monkeypatch.setattr(clock_module, "time", gpu)
    monkeypatch.setattr(torch.cuda, "Event", gpu.Event)
    clock = Clock()
    with clock.wait(GPU):
        gpu.now += 6
    assert (clock.seconds["loading"], clock.working) == (loading, 6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_that_still_computes_is_not_waiting():
    a = torch.randn(8192, 8192, device=GPU)
    (a @ a).sum().item()
    shares = []
    for products in (0, 200):
        clock = Clock()
        for _ in range(products):
            a @ a
        with clock.wait(GPU):
            time.sleep(0.05)
        torch.cuda.synchronize()
        shares.append(clock.seconds["loading"] / clock.working)
    assert shares[0] > 0.9
    assert shares[1] < 0.1
