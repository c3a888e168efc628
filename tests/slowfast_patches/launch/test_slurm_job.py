"""Jobs that are warned, preempted, cancelled and requeued, without SLURM."""

import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slowfast_patches.launch.slurm import Job, Slurm, make_executor, queue

# Saves when told to, the others with the first; what it is to do beyond that comes in files.
TRAINING = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[-1])
number = int(os.environ["SLURM_NODEID"])
def save(*_):
    while (folder / "slow").exists():
        time.sleep(0.02)
    (folder / f"saved_{number}").touch()
    os._exit(75)
assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
if not (folder / "imports").exists():
    signal.signal(signal.SIGUSR1, save)
(folder / f"trains_{number}.tmp").write_text(str(os.getpid()))
(folder / f"trains_{number}.tmp").replace(folder / f"trains_{number}")
finish = folder / "finish"
while not (finish.exists() and finish.read_text()):  # it is there before it is written
    time.sleep(0.02)
    if number and (folder / "saved_0").exists():
        save()
sys.exit(int(finish.read_text()))
"""


@pytest.fixture
def train(cluster: Any, tmp_path: Path) -> Callable[..., Path]:
    """Return `train(machines=1, ...)`, which starts a fake training as a job and waits for it.

    `train` returns the folder through which the training is told what to do.
    """
    script, folder = tmp_path / "run_net.py", tmp_path / "run"
    script.write_text(TRAINING)

    def start(*files: str, machines: int = 1, **options: float) -> Path:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
        slurm = Slurm("gpu", **options)
        executor = make_executor(folder / "slurm", slurm, machines, 0)
        job = Job((sys.executable, str(script), str(folder)), slurm.warning_seconds)
        assert queue(executor, [job]) == [cluster.number]
        cluster.start(machines)
        started = [folder / f"trains_{number}" for number in range(machines)]
        cluster.until(lambda: all(path.exists() for path in started), "training")
        return folder

    return start


def requeues_left(folder: Path) -> int:
    """How often the job that is queued again may still run out of time."""
    with (folder / "slurm" / "4242_submitted.pkl").open("rb") as file:
        return pickle.load(file)._timeout_countdown


def outcome(folder: Path) -> str | None:
    """What submitit wrote of the first task's end: "success", "error", or nothing."""
    path = folder / "slurm" / "4242_0_result.pkl"
    return pickle.loads(path.read_bytes())[0] if path.exists() else None


def test_a_warning_before_the_end_saves_on_all_machines_and_requeues(
    cluster: Any, train: Callable[..., Path]
) -> None:
    folder = train(machines=2, hours=0.05)
    cluster.signal(signal.SIGUSR2, machines=2)
    first, second = cluster.wait()
    assert sorted(p.name for p in folder.glob("saved_*")) == ["saved_0", "saved_1"]
    assert cluster.requeued == ["requeue 4242"]
    assert requeues_left(folder) == 49
    # The job is not over: no result. srun would end all tasks if one that is not the first failed.
    assert outcome(folder) is None
    assert second == 0, first
    (folder / "finish").write_text("0")
    cluster.start(2, restarts=1)
    assert cluster.wait() == [0, 0]
    assert outcome(folder) == "success"


def test_preemption_saves_and_requeues_and_does_not_count(
    cluster: Any, train: Callable[..., Path]
) -> None:
    folder = train(machines=2)
    cluster.signal(signal.SIGCONT, signal.SIGTERM, machines=2)
    assert cluster.wait()[1] == 0
    assert (folder / "saved_1").exists()
    assert cluster.requeued == ["requeue 4242"]
    assert requeues_left(folder) == 50
    assert outcome(folder) is None


def test_a_job_whose_training_is_slow_to_save_is_requeued_in_time(
    cluster: Any, train: Callable[..., Path]
) -> None:
    folder = train("slow", warning_seconds=1)
    cluster.signal(signal.SIGUSR2)
    cluster.until(lambda: bool(cluster.requeued), "requeued in time")
    assert not (folder / "saved_0").exists()
    assert "did not save within" in cluster.log()
    # SLURM leaves it KillWait seconds more.
    (folder / "slow").unlink()
    cluster.wait()
    assert (folder / "saved_0").exists()
    assert cluster.requeued == ["requeue 4242"]


@pytest.mark.parametrize(
    ("state", "sent", "options", "said"),
    [
        ("COMPLETING", signal.SIGTERM, {}, "the job is COMPLETING"),  # cancelled
        ("RUNNING", signal.SIGUSR2, {"hours": 0.05, "requeues": 0}, "timed-out too many times"),
    ],
)
def test_a_job_that_is_cancelled_or_has_no_requeues_left_saves_and_is_not_requeued(
    cluster: Any, train: Callable[..., Path], state, sent, options, said
) -> None:
    folder = train(**options)
    cluster.state(state)
    cluster.signal(signal.SIGCONT, sent)
    assert cluster.wait() == [1]
    assert (folder / "saved_0").exists()
    assert cluster.requeued == []
    assert said in cluster.log()


def test_a_training_that_is_asked_before_it_begins_is_requeued(
    cluster: Any, train: Callable[..., Path]
) -> None:
    folder = train("imports")
    cluster.signal(signal.SIGTERM)
    cluster.wait()
    assert cluster.requeued == ["requeue 4242"]
    assert outcome(folder) is None


def test_a_failed_training_fails_the_job(cluster: Any, train: Callable[..., Path]) -> None:
    folder = train()
    (folder / "finish").write_text("3")
    assert cluster.wait() == [1]
    assert cluster.requeued == []
    assert outcome(folder) == "error"
    assert "exit status 3" in cluster.log()


def test_a_job_that_would_end_before_its_warning_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.03 hours, .* warning time of 120 seconds"):
        Slurm("gpu", hours=0.03)
