"""Change the code in one place at a time, and report the changes that no test notices.

    python -m tests.faults.mutate slowfast_patches/train projects/multigrid --count 60 --seed 1

Each change is made in a copy of the tree: a comparison, a number, a condition, an operator or a
returned value becomes another, or a call or a raise is removed. The tests of the package and the
tests that import the changed module then run, without those marked slow (--all runs them too).
The tests that execute the changed line run first, the quickest at the beginning; a run without any
change has found these tests. Only if they all pass, all tests run: coverage does not see what other
processes execute. A change that survives shows that a test is missing, that the line is not needed,
or that the changed program is equivalent. The exit status is 1 if less than --wanted per cent of
the changes are noticed.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.faults.changes import Change, changes
from tests.faults.forks import Judge, Recorder, Trace, run_in_fork

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".pytest_cache" / "mutate"


def tests_of(root: Path, path: Path) -> list[str]:
    """Return the test files of the package of a module, and those that import the module."""
    parts = path.parts[1:] if path.parts[0] == "projects" else path.parts
    module = ".".join((*parts[:-1], path.stem))
    package = ".".join(parts[:-1])
    own = root / "tests" / Path(*parts[:2] if len(parts) > 2 else parts[:1])
    found = set(own.glob("test_*.py"))
    for file in (root / "tests").rglob("test_*.py"):
        text = file.read_text()
        imports = f"from {package} import" in text and path.stem in text
        if module in text or imports:
            found.add(file)
    return sorted(str(file.relative_to(root)) for file in found if "gpu" not in file.parts)


def all_tests_notice(copy: Path, change: Change, marker: str, seconds: float) -> str:
    """Run all tests of a changed module, and return the first that fails, or an empty text."""
    original = (copy / change.path).read_text()
    (copy / change.path).write_text(change.content)
    recorder = Recorder(copy / "trace.json")
    try:
        status = run_in_fork(copy, tests_of(copy, change.path), marker, seconds, recorder)
    finally:
        (copy / change.path).write_text(original)
    if not recorder.path.exists():
        return f"the end of the process with status {status}"
    return Trace(**json.loads(recorder.path.read_text())).failed


def judge(copy: Path, given: list[Change], marker: str, trace: Trace, quick: bool) -> list[str]:
    """Return for each change the first test that notices it, or an empty text.

    Quick judgement leaves out tests that run the changed lines in other processes only.
    """
    first = sorted({test.partition("::")[0] for change in given for test in trace.tests_of(change)})
    judge = Judge(copy / "judged.json", given, trace)
    status = run_in_fork(copy, first, marker, 36000, judge) if first else 0
    found = [""] * len(given)
    if first:
        if status:
            sys.exit(f"the process that collects the tests ended with status {status}")
        found = json.loads(judge.path.read_text())
    seconds = 60 + 8 * sum(trace.seconds.values())
    for number, change in enumerate(given):
        if not found[number] and not quick:
            found[number] = all_tests_notice(copy, change, marker, seconds)
        report(change, found[number])
    return found


def report(change: Change, test: str) -> None:
    print(f"noticed  {change}  by {test}" if test else f"SURVIVED {change}", flush=True)


def traced(copy: Path, files: list[str], marker: str) -> Trace:
    """Run the tests without a change, and return which lines each one executes.

    The result is read from CACHE if the tree has not changed since.
    """
    digest = hashlib.sha256(repr((files, marker)).encode())
    for file in sorted(path for path in copy.rglob("*") if path.suffix != ".pyc"):
        if file.is_file():
            digest.update(str(file.relative_to(copy)).encode() + file.read_bytes())
    cached = CACHE / f"{digest.hexdigest()[:20]}.json"
    if cached.exists():
        return Trace(**json.loads(cached.read_text()))
    recorder = Recorder(copy / "trace.json")
    options = ["--cov=projects", "--cov=slowfast_patches", "--cov-context=test", "--cov-report="]
    status = run_in_fork(copy, files, marker, 3600, recorder, *options)
    if status and not recorder.path.exists():
        sys.exit(f"The tests do not end without any change: status {status}")
    trace = Trace(**json.loads(recorder.path.read_text()))
    if status or trace.failed:
        sys.exit(f"A test fails without any change, so it cannot notice one: {trace.failed}")
    trace.lines = executed_lines(copy)
    CACHE.mkdir(parents=True, exist_ok=True)
    cached.write_text(json.dumps(asdict(trace)))
    return trace


def executed_lines(copy: Path) -> dict[str, dict[str, list[str]]]:
    """Return the tests that execute each line of each file, from the data that coverage saved."""
    from coverage import CoverageData

    data = CoverageData(copy / ".coverage")
    data.read()
    lines = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(copy))] = {
            str(line): sorted({name.partition("|")[0] for name in names if name})
            for line, names in contexts.items()
        }
    return lines


def copied_tree() -> Path:
    """Copy the files that git tracks to a new folder, and compile them."""
    copy = Path(tempfile.mkdtemp(prefix="mutate")).resolve()
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for folder in ("projects", "slowfast_patches"):
        # Checked by content, as a change may keep the size of a file and the second of its time.
        compileall.compile_dir(
            copy / folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )
    return copy


def parse_args() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("paths", nargs="+", type=Path, help="folders or files to change")
    parser.add_argument("--count", type=int, default=60, help="number of changes (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="changes to test at once (default: 1)")
    parser.add_argument("--wanted", type=float, default=85.0, help="per cent to be noticed")
    parser.add_argument("--tests", nargs="+", help="test files or folders to run instead")
    parser.add_argument("--quick", action="store_true", help="run no tests but those of the lines")
    parser.add_argument("--all", action="store_true", help="run slow tests as well")
    return parser.parse_args()


def possible_changes(paths: list[Path]) -> list[Change]:
    """Return all changes of the files and folders that were given."""
    files = sorted(
        file.relative_to(ROOT)
        for given in paths
        for file in ([given.resolve()] if given.is_file() else given.resolve().rglob("*.py"))
    )
    return [change for file in files for change in changes(ROOT, file)]


def main() -> int:
    args = parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    possible = possible_changes(args.paths)
    chosen = random.Random(args.seed).sample(possible, min(args.count, len(possible)))
    marker = "not gpu and not extras" + ("" if args.all else " and not slow")
    copies = [copied_tree() for _ in range(args.jobs)]
    shares = [chosen[job :: args.jobs] for job in range(args.jobs)]
    try:
        paths = {change.path for change in possible}
        files = args.tests or sorted({t for path in paths for t in tests_of(copies[0], path)})
        trace = traced(copies[0], files, marker)
        if not args.tests:
            # A test of another package that happens to execute the line does not count.
            trace.judges = {str(path): tests_of(copies[0], path) for path in paths}
        for name in trace.packages:
            with suppress(Exception):
                importlib.import_module(name)
        with ThreadPoolExecutor(args.jobs) as pool:
            judged = [
                pool.submit(judge, copy, share, marker, trace, args.quick)
                for copy, share in zip(copies, shares, strict=True)
            ]
            noticed = sum(bool(test) for each in judged for test in each.result())
    finally:
        for copy in copies:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.rmtree(copy.with_suffix(".tests"), ignore_errors=True)
    share = 100 * noticed / max(1, len(chosen))
    print(f"{noticed} of {len(chosen)} changes were noticed ({share:.0f} %)")
    return int(share < args.wanted)


if __name__ == "__main__":
    sys.exit(main())
