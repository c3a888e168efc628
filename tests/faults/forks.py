"""Runs of tests in forks of a process that has imported what they need, for mutate.py."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.faults.changes import Change

MEMORY = 8 << 30
"""Most bytes that a process of changed tests may allocate."""


@dataclass
class Trace:
    """What a run of the tests showed.

    Attributes:
        seconds: Time of each test by its node ID.
        lines: Tests by the lines that they execute, by file.
        packages: Modules of other projects that the tests import.
        failed: The first test that failed, or an empty text.
        judges: Test files that may judge a file, by the file. If it is missing, all may.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    failed: str = ""
    judges: dict[str, list[str]] = field(default_factory=dict)

    def tests_of(self, change: Change) -> list[str]:
        """Return the tests that execute the place of a change, the quickest first."""
        of_file = self.lines.get(str(change.path), {})
        found = {test for line in change.lines for test in of_file.get(str(line), [])}
        if (judges := self.judges.get(str(change.path))) is not None:
            found = {test for test in found if test.partition("::")[0] in judges}
        return sorted(found & self.seconds.keys(), key=lambda test: (self.seconds[test], test))


class Recorder:
    """Plugin of pytest that records a Trace in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trace = Trace()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trace.failed = self.trace.failed or report.nodeid or "the import of the tests"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self.trace.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.trace.failed = self.trace.failed or report.nodeid

    def pytest_sessionfinish(self) -> None:
        files = {name: getattr(module, "__file__", "") for name, module in sys.modules.items()}
        self.trace.packages = [name for name, file in files.items() if "site-packages" in str(file)]
        self.path.write_text(json.dumps(asdict(self.trace)))


class Judge(Recorder):
    """Plugin of pytest that collects tests once, and judges each change in a fork.

    It replaces the code of the functions in memory. The result is a file with the failed test of
    each change by its number, or an empty text if the tests of its lines pass.
    """

    def __init__(self, path: Path, changes: list[Change], known: Trace) -> None:
        super().__init__(path)
        self.changes = changes
        self.known = known

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for path in {change.path for change in self.changes}:
            with suppress(Exception):  # Some are imported late, in the tests that need them.
                import_module(module_name(path))
        gc.unfreeze()  # gc.get_objects leaves out what is frozen
        functions = functions_by_file()
        gc.freeze()
        found = []
        for change in self.changes:
            chosen = [items[test] for test in self.known.tests_of(change) if test in items]
            found.append(self.judged(change, chosen, functions) if chosen else "")
            self.path.write_text(json.dumps(found))  # at each change, for who wants to look
        os._exit(0)

    def judged(
        self,
        change: Change,
        items: list[pytest.Item],
        functions: dict[str, list[FunctionType]],
    ) -> str:
        """Return the first of these tests that fails with a change."""
        said = self.path.with_suffix(".failed")
        said.unlink(missing_ok=True)
        if pid := os.fork():
            status = wait_for(pid)
            return said.read_text() if said.exists() else f"the end of a process: {status}"
        try:
            limit(30 + 8 * sum(self.known.seconds[item.nodeid] for item in items))
            replace(change, functions[str(Path.cwd() / change.path)])
            for item in items:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if self.trace.failed:
                    break
            said.write_text(self.trace.failed)
        finally:
            os._exit(1)


def module_name(path: Path) -> str:
    """Return the name of a module by its path in the tree."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "projects" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions_by_file() -> dict[str, list[FunctionType]]:
    """Return the functions of this process by the file that defines them."""
    found = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType:
            found[each.__code__.co_filename].append(each)
    return found


def replace(change: Change, functions: list[FunctionType]) -> None:
    """Give functions of a changed file their new code.

    Code whose closure is another stays as it is.
    """
    name = str(Path.cwd() / change.path)
    old, new = (
        compile(text, name, "exec", dont_inherit=True)
        for text in (Path(change.path).read_text(), change.content)
    )
    codes = dict(zip(_codes(old), _codes(new), strict=False))
    for function in functions:
        code = codes.get(function.__code__)
        if code and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def limit(seconds: float) -> None:
    """End this process after some seconds, also if it waits in C, and limit its memory."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def wait_for(pid: int) -> int:
    """Wait for a process that has called `limit`, end its children, and return its status."""
    status = os.waitpid(pid, 0)[1]
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return status


def run_in_fork(
    copy: Path, files: list[str], marker: str, seconds: float, recorder: Recorder, *options: str
) -> int:
    """Run the tests of a copy of the tree in a fork, and return the exit status.

    The plugin `recorder` leaves its file, unless the fork does not end in time.
    """
    recorder.path.unlink(missing_ok=True)
    if pid := os.fork():
        return wait_for(pid)
    try:
        limit(seconds)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = f"{copy}{os.pathsep}{copy / 'projects'}"
        sys.path[:0] = [str(copy), str(copy / "projects")]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]  # This program is in the package tests of the original tree.
        given = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marker]
        given += [f"--basetemp={copy.with_suffix('.tests')}", *options, *files]
        os._exit(pytest.main(given, plugins=[recorder]))
    finally:
        os._exit(1)
