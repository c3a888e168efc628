"""Features of all command lines: exit status, error messages and help."""

import os
import subprocess
import sys
import tomllib
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from multigrid import MultigridError
from slowfast_patches.utils.command_line import (
    above_zero,
    add_overrides,
    add_seeds,
    at_least_one,
    command_parser,
    from_zero,
    take_numbers,
    tool,
)
from slowfast_patches.utils.errors import RunError, UserError

ROOT = Path(__file__).parents[3]
TOOLS = sorted(path.stem for path in (ROOT / "tools").glob("[a-z]*.py"))


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (MultigridError("no such shape"), 2, "error: no such shape\n"),
        (UserError("no such recipe"), 2, "error: no such recipe\n"),
        (RunError("a run failed"), 2, "error: a run failed\n"),
        (KeyboardInterrupt(), 130, "interrupted. To continue, repeat the command\n"),
    ],
)
def test_what_a_user_can_cause_is_one_line(error, status, said, capsys):
    @tool
    def main():
        raise error

    assert main() == status
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    "kind", [ValueError, OSError, ImportError, RuntimeError, KeyError, BrokenPipeError]
)
def test_what_nobody_expected_keeps_its_traceback(kind, capsys):
    @tool
    def main():
        raise kind("too many values to unpack")

    assert main() == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {kind.__name__} in ")
    assert "Traceback (most recent call last)" in said
    assert said.rstrip().endswith(f"{kind.__name__}: {kind('too many values to unpack')}")


def test_every_tool_has_a_command(load_program):
    module = load_program("tools/__init__.py")
    commands = module.installed_commands()
    assert sorted(commands.values()) == TOOLS
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert module.COMMANDS.keys() <= commands.keys() <= scripts.keys()


def test_a_command_of_a_deleted_extra_says_so(load_program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/bin/multigrid-no-such", "--help"])
    assert load_program("tools/__init__.py").main() == 2
    said = capsys.readouterr().err
    assert "multigrid-no-such is not installed: the package has no tools/no_such.py" in said
    assert "The commands are: multigrid-train, " in said


def test_a_command_of_another_name_says_so(load_program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/bin/mg-train", "--help"])
    assert load_program("tools/__init__.py").main() == 2
    assert "/bin/mg-train was renamed" in capsys.readouterr().err


HELPED = """
import runpy, sys
sys.argv = ["{0}", "--help"]
try:
    {1}
finally:
    print(sorted({{"torch", "numpy", "av", "cv2"}} & sys.modules.keys()))
"""


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("is_command", [False, True])
def test_help_needs_no_slow_import(tool, is_command, load_program):
    commands = load_program("tools/__init__.py").installed_commands()
    name = next(name for name, module in commands.items() if module == tool)
    call = f"runpy.run_path('tools/{tool}.py', run_name='__main__')"
    if is_command:
        call = "import tools; tools.main()"
    program = HELPED.format(name, call)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    *text, imported = done.stdout.splitlines()
    assert (done.returncode, imported) == (0, "[]"), done.stderr
    assert text[0].startswith("usage: ")


PRINTS = """
from slowfast_patches.utils.command_line import tool
raise SystemExit(tool(lambda: print("one line") or 0)())
"""


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", PRINTS], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


SIGNALLED = """
import os, signal, sys
from slowfast_patches.utils.command_line import start_program
start_program(resumes={})
assert not {{"torch", "numpy"}} & sys.modules.keys()
os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize(
    ("resumes", "sent", "status"), [(True, "SIGTERM", 75), (False, "SIGINT", 130)]
)
def test_a_signal_while_a_program_is_imported_ends_it(resumes, sent, status):
    program = SIGNALLED.format(resumes, sent)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (status, "interrupted\n")


def test_files_of_the_program_do_not_hide_modules_of_the_user(tmp_path):
    """As tools/plan.py would hide plan.py of `tools/run_net.py --import plan`."""
    (tmp_path / "plan.py").touch()
    program = tmp_path / "run.py"
    program.write_text(
        "from importlib.util import find_spec\n"
        "from slowfast_patches.utils.command_line import start_program\n"
        "start_program()\n"
        "print(find_spec('plan'))\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_key_equals_value_is_a_pair_wherever_it_stands():
    parser = command_parser("A program.")
    add_seeds(parser)
    add_overrides(parser, "config keys to set")
    args = parser.parse_intermixed_args(["A=1", "--seeds", "0", "1", "B", "x=y", "C=z"])
    take_numbers(args, "seeds", from_zero)
    assert (args.seeds, args.overrides) == ([0, 1], ["B", "x=y", "C", "z", "A", "1"])


@pytest.mark.parametrize("word", ["-1", "0", "nan", "inf", "1e400", "1e13", "two", ""])
@pytest.mark.parametrize(("kind", "wanted"), [(above_zero, "a number"), (at_least_one, "a whole")])
def test_numbers_are_finite_and_their_errors_are_in_words(kind, wanted, word):
    with pytest.raises(ArgumentTypeError, match=f"^expected {wanted} .*, not {word}$"):
        kind(word)


@pytest.mark.parametrize("word", ["-1", "1.5", "1_0", "٣", "9" * 5000])
def test_whole_numbers_have_only_digits(word):
    with pytest.raises(ArgumentTypeError, match=r"^expected a whole number of at least 0"):
        from_zero(word)


def test_numbers_of_the_command_line():
    assert (above_zero("1e-3"), at_least_one("10"), from_zero("0")) == (0.001, 10, 0)
