"""Work in other processes: what comes back, what a death costs, and that nothing goes on."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from slowfast_patches.utils.processes import Died, run_each

LIMIT = 60.0
"""Seconds to wait for another process before the test fails."""
OS, TIME = "__import__('os')", "__import__('time')"
ID, DIE = f"{OS}.getpid()", f"{OS}._exit(9)"


# Jobs for `eval`.


def dies(mark: Path, times: int) -> str:
    """Kills its process so many times, and then says "survived"; the mark is as long as often it
    was begun."""
    begin = f"(open({str(mark)!r}, 'a').write('x') and 0) or {OS}.path.getsize({str(mark)!r})"
    return f"{DIE} if ({begin}) <= {times} else 'survived'"


def lasts(folder: Path) -> str:
    """Leaves the id of its process in a folder, and does not end."""
    return f"open({str(folder)!r} + '/' + str({ID}), 'w').close() or {TIME}.sleep({10 * LIMIT})"


def begins(mark: Path) -> str:
    """Makes the mark longer by one."""
    return f"open({str(mark)!r}, 'a').write('x')"


def when(mark: Path, job: str) -> str:
    """A job that waits for a mark."""
    exists = f"{TIME}.sleep(0.01) or {OS}.path.exists({str(mark)!r})"
    return f"([*iter(lambda: {exists}, True)] and 0) or ({job})"


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def wait_for_end(folder: Path) -> None:
    """Until none of the processes that left their ids is left."""
    wait_for(lambda: not any(Path("/proc", path.name).exists() for path in folder.iterdir()))


@pytest.mark.parametrize("jobs_per_worker", [1, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_comes_back_with_its_result(workers, jobs_per_worker):
    jobs = [*range(20), 3, 3]
    done = list(run_each(math.factorial, jobs, workers, jobs_per_worker=jobs_per_worker))
    assert sorted(done) == sorted((job, math.factorial(job)) for job in jobs)


def test_nothing_to_do():
    assert list(run_each(abs, [], 2)) == []


def test_a_worker_is_another_process_of_one_thread_that_leaves_ctrl_c_to_this_one():
    jobs = [ID, "__import__('cv2').getNumThreads()"]
    jobs.append("2 in __import__('signal').pthread_sigmask(0, [])")
    process, *rest = dict(run_each(eval, jobs, 1)).values()
    assert process != os.getpid()
    assert rest == [1, True]


# Deaths.


@pytest.mark.parametrize("jobs_per_worker", [1, 3])
def test_a_job_that_kills_its_process_costs_no_other(tmp_path, jobs_per_worker):
    once = dies(tmp_path / "once", 1)
    jobs = ["1 + 1", DIE, "2 + 2", once, "3 + 3", "4 + 4", f"{DIE} or 2"]
    results = dict(run_each(eval, jobs, 2, jobs_per_worker=jobs_per_worker))
    assert isinstance(results.pop(DIE), Died)
    assert isinstance(results.pop(f"{DIE} or 2"), Died)
    assert results == {"1 + 1": 2, "2 + 2": 4, once: "survived", "3 + 3": 6, "4 + 4": 8}


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_a_job_is_blamed_for_the_second_death(tmp_path, deaths):
    """And neither those behind it, of the same worker, nor what another does at that time."""
    job, mark = dies(tmp_path / "mark", deaths), tmp_path / "other"
    other = f"{begins(mark)} and {when(tmp_path / 'end', '1')}"
    jobs = [other, job, "2", "3", f"open({str(tmp_path / 'end')!r}, 'w').close()"]
    results = dict(run_each(eval, jobs, 2, jobs_per_worker=2))
    assert isinstance(results.pop(job), Died) == (deaths > 1)
    assert results == dict(zip([other, *jobs[2:]], [1, 2, 3, None], strict=True))
    assert ((tmp_path / "mark").stat().st_size, mark.stat().st_size) == (2, 1)


def test_what_a_job_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(run_each(eval, ["1", "1 / 0"], 1))
    with pytest.raises(FileNotFoundError, match="not/there"):
        list(run_each(os.stat, ["/not/there"], 1))


# Where there are no other processes.


def ids(count: int = 3) -> set[object]:
    """The processes that do some jobs."""
    return {found for _, found in run_each(eval, [ID] * count, 2)}


def test_where_no_process_can_be_started_this_one_works(monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(ForkServerProcess, "start", refuse)
    assert ids() == {os.getpid()}
    assert "no other process can be started" in caplog.text


def test_a_daemonic_process_works_itself(monkeypatch, caplog):
    assert os.getpid() not in ids()
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert ids() == {os.getpid()}
    assert not caplog.records


SCRIPT = """
import os
from slowfast_patches.utils.processes import run_each

print("begins", flush=True)
for job, result in run_each(eval, ["__import__('os').getpid()"] * 9, 2):
    print(result == os.getpid(), flush=True)
print("ends", flush=True)
"""


@pytest.mark.parametrize("guard", [True, False])
def test_a_script_does_all_once_and_without_a_main_guard_by_itself(tmp_path, guard):
    script = tmp_path / "script.py"
    indented = "".join(f"    {line}\n" for line in SCRIPT.splitlines())
    script.write_text(f'if __name__ == "__main__":\n{indented}' if guard else SCRIPT)
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("ends") == 1
    assert (ran.stdout.count("True"), ran.stdout.count("False")) == ((0, 9) if guard else (9, 0))
    assert ("no other process can be started" in ran.stderr) == (not guard)


# Ends.


def test_who_stops_listening_stops_the_workers(tmp_path):
    each = run_each(eval, ["1", lasts(tmp_path), lasts(tmp_path), "2"], 2, jobs_per_worker=2)
    assert next(each) == ("1", 1)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    each.close()
    wait_for_end(tmp_path)


PARENT = """
import sys
from slowfast_patches.utils.processes import run_each

if __name__ == "__main__":
    list(run_each(eval, [sys.argv[1]] * 2, 2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, number):
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "ids").mkdir()
    command = [sys.executable, str(tmp_path / "parent.py"), lasts(tmp_path / "ids")]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list((tmp_path / "ids").iterdir())) == 2)
    parent.send_signal(number)
    said = parent.communicate(timeout=LIMIT)[1]
    assert parent.returncode == -number
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    wait_for_end(tmp_path / "ids")
