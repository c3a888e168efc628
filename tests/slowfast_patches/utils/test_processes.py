"""Work in other processes: results, crashes of workers, and no processes left at the end."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slowfast_patches.utils.processes import WorkerCrashed, run_each

pytestmark = pytest.mark.slow("starts processes")

LIMIT = 60.0
"""Seconds to wait for another process before the test fails."""
OS, TIME = "__import__('os')", "__import__('time')"
ID, DIE = f"{OS}.getpid()", f"{OS}._exit(9)"


# Jobs for `eval`.


def dies_once(mark):
    """Kills its process the first time, and then says "survived"."""
    return f"'survived' if {OS}.path.exists({str(mark)!r}) else open({str(mark)!r}, 'w') and {DIE}"


def lasts(folder):
    """Leaves the id of its process in a folder, and does not end."""
    return f"open({str(folder)!r} + '/' + str({ID}), 'w').close() or {TIME}.sleep({10 * LIMIT})"


def wait_for(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def wait_for_end(folder):
    """Until none of the processes that left their ids is left."""
    wait_for(lambda: not any(Path("/proc", path.name).exists() for path in folder.iterdir()))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_job_comes_back_with_its_result(workers):
    jobs = [*range(20), 3, 3]
    done = list(run_each(math.factorial, jobs, workers, jobs_per_worker=3))
    assert sorted(done) == sorted((job, math.factorial(job)) for job in jobs)


def test_a_job_that_kills_its_process_twice_is_blamed_and_costs_no_other(tmp_path):
    once = dies_once(tmp_path / "once")
    jobs = ["1 + 1", DIE, "2 + 2", once, "3 + 3", "4 + 4", f"{DIE} or 2"]
    results = dict(run_each(eval, jobs, 2, jobs_per_worker=3))
    assert isinstance(results.pop(DIE), WorkerCrashed)
    assert isinstance(results.pop(f"{DIE} or 2"), WorkerCrashed)
    assert results == {"1 + 1": 2, "2 + 2": 4, once: "survived", "3 + 3": 6, "4 + 4": 8}


def test_a_script_without_a_main_guard_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from slowfast_patches.utils.processes import run_each\nlist(run_each(eval, ['1'], 2))"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.count("RunError: worker processes cannot be started") == 1


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
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


BESIDE = """
import math, os
from slowfast_patches.utils.processes import run_each
if __name__ == "__main__":
    print(list(run_each(math.factorial, [3], 1)), os.environ.get("PYTHONSAFEPATH"))
"""


def test_files_beside_the_videos_are_not_run(tmp_path):
    """multiprocessing would import them in place of Python's own modules."""
    for name in ("random", "queue", "copy", "cv2", "selectors", "tempfile", "socket"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\nraise SystemExit(7)\n")
    program = tmp_path / "program" / "run.py"
    program.parent.mkdir()
    program.write_text(BESIDE)
    command = [sys.executable, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == "[(3, 6)] None\n", ran.stderr
    assert not (tmp_path / "executed").exists()
