"""Change the code in one place at a time, and report the changes that no test notices.

    python -m tests.faults.mutate slowfast_patches/train projects/multigrid --count 60 --seed 1

Each change is made in a copy of the tree: a comparison, a number, a condition, an operator or a
returned value becomes another, or a call or a raise is removed. The tests of the package and the
tests that import the changed module then run, without those marked slow (--all runs them too). A
change that survives shows that a test is missing, that the line is not needed, or that the changed
program is equivalent. The exit status is 1 if less than --wanted per cent of the changes are
noticed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
IMPORTED = ("torch", "torch._dynamo", "cv2", "av", "pandas", "sklearn.metrics", "pytest")
"""Slow packages. Tests run in forks of this process, which has imported them."""
OTHER_COMPARISON = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER_OPERATOR = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Change:
    """A change of one place of a file.

    Attributes:
        path: The file, relative to the root of the tree.
        line: Line number, from 1.
        old: The text before.
        new: The text after.
        content: Text of the whole file after the change.
    """

    path: Path
    line: int
    old: str
    new: str
    content: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:100] for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {old}  ->  {new}"


def changes(root: Path, path: Path) -> Iterator[Change]:
    """Yield all changes of a file. Constants and messages outside of functions stay as they are."""
    text = (root / path).read_text()
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _in_functions(ast.parse(text)):
        new = _changed(node)
        if new is None:
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        data = text.encode()
        old = data[begin:end].decode()
        content = data[:begin] + new.encode() + data[end:]
        yield Change(path, node.lineno, old, new, content.decode())


def _in_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes in the bodies of functions, without docstrings, messages and annotations."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        inside, children = True, tree.body
    elif isinstance(tree, ast.JoinedStr):
        return
    elif isinstance(tree, ast.AnnAssign):
        children = [node for node in (tree.value,) if node]
    else:
        children = list(ast.iter_child_nodes(tree))
    for node in children:
        if inside and hasattr(node, "lineno"):
            yield node
        yield from _in_functions(node, inside)


def _changed(node: ast.AST) -> str | None:
    """Return the source of a changed node, or None if this kind of node is not changed."""
    match node:
        case ast.Compare(ops=[first, *_]) if type(first) in OTHER_COMPARISON:
            ops = [OTHER_COMPARISON[type(first)](), *node.ops[1:]]
            return f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
        case ast.BoolOp():
            return f"({ast.unparse(ast.BoolOp(OTHER_OPERATOR[type(node.op)](), node.values))})"
        case ast.BinOp() if type(node.op) in OTHER_OPERATOR:
            new = ast.BinOp(node.left, OTHER_OPERATOR[type(node.op)](), node.right)
            return f"({ast.unparse(new)})"
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            return repr(value + 1)
        case ast.UnaryOp(op=ast.Not()):
            return f"({ast.unparse(node.operand)})"
        case ast.IfExp():
            return f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
        case ast.Raise(exc=ast.expr()) | ast.Expr(value=ast.Call()):
            return "pass"
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            return "return None"
        case ast.Assert():
            return None
    return None


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
    return sorted(str(file) for file in found if "gpu" not in file.parts)


def is_noticed(copy: Path, change: Change, marker: str, seconds: int) -> bool:
    """Return whether a test fails with a change, or does not end in time."""
    original = (copy / change.path).read_text()
    (copy / change.path).write_text(change.content)
    try:
        return not pass_in_fork(copy, tests_of(copy, change.path), marker, seconds)
    finally:
        (copy / change.path).write_text(original)


def pass_in_fork(copy: Path, tests: list[str], marker: str, seconds: int) -> bool:
    """Run tests in a fork of this process, and return whether all pass in time."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(seconds)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = f"{copy}{os.pathsep}{copy / 'projects'}"
    sys.path[:0] = [str(copy), str(copy / "projects")]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # This program is in the package tests of the original tree.
    import pytest

    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", marker, *tests]))


def copied_tree() -> Path:
    """Copy the files that git tracks to a new folder."""
    copy = Path(tempfile.mkdtemp(prefix="mutate"))
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def parse_args() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("paths", nargs="+", type=Path, help="folders or files to change")
    parser.add_argument("--count", type=int, default=60, help="number of changes (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="changes to test at once (default: 1)")
    parser.add_argument("--seconds", type=int, default=300, help="time for the tests of a change")
    parser.add_argument("--wanted", type=float, default=85.0, help="per cent to be noticed")
    parser.add_argument("--all", action="store_true", help="run slow tests as well")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    for name in IMPORTED:
        importlib.import_module(name)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    files = sorted(
        file.relative_to(ROOT)
        for given in args.paths
        for file in ([given.resolve()] if given.is_file() else given.resolve().rglob("*.py"))
    )
    possible = [change for file in files for change in changes(ROOT, file)]
    chosen = random.Random(args.seed).sample(possible, min(args.count, len(possible)))
    copies = SimpleQueue[Path]()
    made = [copied_tree() for _ in range(args.jobs)]
    for copy in made:
        copies.put(copy)
    marker = "not gpu" if args.all else "not gpu and not slow"

    def test(change: Change) -> bool:
        copy = copies.get()
        try:
            noticed = is_noticed(copy, change, marker, args.seconds)
        finally:
            copies.put(copy)
        print(f"{'noticed ' if noticed else 'SURVIVED'} {change}", flush=True)
        return noticed

    tests = sorted({test for change in chosen for test in tests_of(made[0], change.path)})
    try:
        if not pass_in_fork(made[0], tests, marker, 10 * args.seconds):
            sys.exit("the tests fail without any change, so they cannot notice one")
        with ThreadPoolExecutor(args.jobs) as pool:
            noticed = sum(pool.map(test, chosen))
    finally:
        for copy in made:
            shutil.rmtree(copy, ignore_errors=True)
    share = 100 * noticed / max(1, len(chosen))
    print(f"{noticed} of {len(chosen)} changes were noticed ({share:.0f} %)")
    return int(share < args.wanted)


if __name__ == "__main__":
    sys.exit(main())
