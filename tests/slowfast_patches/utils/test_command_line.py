"""Features of all command lines: exit status, error messages and help."""

import io
import os
import signal
import subprocess
import sys
import tomllib
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from multigrid import MultigridError
from slowfast_patches.seams import Lazy
from slowfast_patches.utils import command_line as command_line_module
from slowfast_patches.utils.command_line import (
    above_zero,
    add_accepted,
    add_cfg,
    add_json,
    add_output,
    add_overrides,
    add_seeds,
    add_step_times,
    answer_help,
    at_least_one,
    command_parser,
    extra_options,
    from_zero,
    key_value,
    more_seeds,
    option_of,
    split_pairs,
    start_program,
    take_numbers,
    tool,
    with_seeds,
)
from slowfast_patches.utils.errors import RunError, UserError
from slowfast_patches.utils.signals import STOP_SIGNALS, finished

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


def test_the_status_of_a_tool_is_that_of_its_main_function():
    assert tool(lambda *words: len(words))("a", "b") == 2


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


@pytest.mark.slow("starts programs")
def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", PRINTS], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_whether_the_reader_of_a_pipe_is_gone():
    reader, writer = os.pipe()
    assert not command_line_module._is_closed(writer)
    os.close(reader)
    assert command_line_module._is_closed(writer)
    os.close(writer)


def test_a_tool_whose_output_is_cut_off_ends_without_a_message(monkeypatch, capsys):
    """Python flushes its output once more at the end, which must not fail."""
    moved = list[tuple[str, int]]()
    monkeypatch.setattr(command_line_module, "_is_closed", lambda number: number == 1)
    monkeypatch.setattr(command_line_module.os, "open", lambda path, mode: path)
    monkeypatch.setattr(command_line_module.os, "dup2", lambda *given: moved.append(given))

    @tool
    def main():
        raise BrokenPipeError("of the output")

    assert main() == 1
    assert moved == [(os.devnull, 1)]
    assert capsys.readouterr() == ("", "")

    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", Closed())
        status = tool(lambda: 0)()
    assert status == 1, "what is printed last is written before the program ends"


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


def test_keys_values_and_seeds_of_a_command_line():
    assert split_pairs(["A=1", "B", "x=y", "C=", "D", 2]) == ["A", "1", "B", "x=y", "C", "", "D", 2]
    assert key_value("a=b=c") == ("a", "b=c")
    with pytest.raises(ArgumentTypeError, match="expected KEY=VALUE, not a"):
        key_value("a")
    assert option_of("step_times") == "--step-times"
    assert more_seeds([0]) == [0, 1, 2]
    assert more_seeds([2, 0]) == [2, 0, 1]
    assert more_seeds([5], 2) == [5, 0]
    assert more_seeds([3, 1, 4, 2]) == [3, 1, 4, 2]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("tool --seeds 0 1 --cfg a b", "tool --seeds 3 4 --cfg a b"),
        ("tool --cfg 'a b' --seeds 7", "tool --seeds 3 4 --cfg 'a b'"),
        ("tool A 1", "tool A 1 --seeds 3 4"),
        ("tool --seeds 0 A 1", "tool A 1 --seeds 3 4"),
        ("tool --cfg x A 1", "tool --seeds 3 4 --cfg x A 1"),
    ],
)
def test_a_command_gets_other_seeds(command, expected):
    assert with_seeds(command, [3, 4]) == expected


def test_shared_options_are_read_as_they_are_described():
    parser = command_parser("About\n  a tool.")
    add_cfg(parser)
    add_output(parser, "runs/x")
    add_json(parser, " and no more")
    add_step_times(parser)
    add_overrides(parser, "keys")
    assert "About\n  a tool." in parser.format_help()
    args = parser.parse_args(["--cfg", "a.yaml", "--import", "m", "--import", "n", "A", "1"])
    assert (args.cfg, args.output, args.json) == (Path("a.yaml"), Path("runs/x"), False)
    assert (args.step_times, args.step_seconds) == ([], None)
    assert args.overrides == ["A", "1", "IMPORTS", "m,n"]
    found = parser.parse_args(
        ["--cfg", "a", "--output", "o", "--json", "--step-times", "x", "--step-times", "y"]
    )
    assert (found.output, found.json) == (Path("o"), True)
    assert found.step_times == [Path("x"), Path("y")]
    for wrong in (["--output", "o"], ["--cfg", "a", "--step-times", "x", "--step-seconds", "1"]):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(wrong)
        assert ended.value.code == 2


def test_differences_are_accepted_one_at_a_time():
    parser = command_parser("x")
    add_accepted(parser)
    assert parser.parse_args([]).accept_change == []
    words = ["--accept-change", "val_list", "--accept-change", "SOLVER.BASE_LR"]
    assert parser.parse_args(words).accept_change == ["val_list", "SOLVER.BASE_LR"]


def test_version_prints_packages_and_the_machine(capsys):
    with pytest.raises(SystemExit) as ended:
        command_parser("x").parse_args(["--version"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for name in ("torch: ", "pyslowfast: 1.0\n", "cores: ", "gpus: "):
        assert name in said


def test_numbers_before_keys_are_those_of_the_option():
    parser = command_parser("x")
    add_seeds(parser)
    add_overrides(parser, "keys")
    args = parser.parse_args(["--seeds", "2", "0", "2", "A.B", "3"])
    take_numbers(args, "seeds", from_zero)
    assert (args.seeds, args.overrides) == ([2, 0], ["A.B", "3"])
    args = parser.parse_args(["--seeds", "A", "3"])
    with pytest.raises(UserError, match="--seeds takes numbers, not A"):
        take_numbers(args, "seeds", from_zero)
    args = parser.parse_args(["--seeds", "1.5"])
    with pytest.raises(UserError, match="--seeds: expected a whole number"):
        take_numbers(args, "seeds", from_zero)


def test_options_of_extras_are_those_of_their_tables():
    found = {option.name: option for option in extra_options("multigrid-predict")}
    tables = [
        tomllib.loads(path.read_text())
        for path in (ROOT / "slowfast_patches/extras").glob("*/options.toml")
    ]
    assert found.keys() == {name for table in tables for name in table.get("multigrid-predict", {})}
    for option in found.values():
        assert callable(Lazy(option.write).load())
        assert isinstance(option.is_file, bool)
    assert extra_options("no such command") == []


@pytest.mark.parametrize(
    ("local", "slurm", "first"),
    [
        (None, None, True),
        ("0", None, True),
        ("1", None, False),
        (None, "2", False),
        ("0", "2", True),
    ],
)
def test_the_first_process_of_a_machine_alone_reports(monkeypatch, capsys, local, slurm, first):
    for name, value in (("LOCAL_RANK", local), ("SLURM_LOCALID", slurm)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)

    @tool
    def main():
        raise UserError("no such recipe")

    assert main() == 2
    assert ("no such recipe" in capsys.readouterr().err) == first


@pytest.fixture
def started(monkeypatch):
    """Return `started(resumes)`, which prepares this process as that of a program."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    ends = list[int]()
    monkeypatch.setattr(command_line_module.os, "_exit", ends.append)
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(ROOT / "tools" / "plan.py"), "--help"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "TORCHELASTIC_MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    finished.clear()

    def start(resumes: bool) -> list[int]:
        start_program(resumes=resumes)
        return ends

    yield start
    finished.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("resumes", "number", "statuses"),
    [
        (False, signal.SIGINT, [130]),
        (True, signal.SIGINT, [130]),
        (True, signal.SIGTERM, [75]),
        (True, signal.SIGUSR1, [75]),
    ],
)
def test_a_signal_ends_a_program_that_imports(started, capfd, resumes, number, statuses):
    ends = started(resumes)
    os.kill(os.getpid(), number)
    assert ends == statuses
    assert capfd.readouterr().err == "interrupted\n"
    finished.set()
    os.kill(os.getpid(), number)
    assert ends == statuses, "after the result is written, a signal has no effect"
    assert str(ROOT / "tools") not in sys.path
    assert sys.stdout.errors == "backslashreplace"


def test_a_program_that_does_not_resume_leaves_other_signals_alone(started):
    before = signal.getsignal(signal.SIGTERM)
    started(False)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_tool_is_interrupted_by_hand_and_ignores_signals_when_it_has_ended(started, capsys):
    started(True)

    @tool
    def main():
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    assert main() == 130
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == [signal.SIG_IGN] * 3


def test_help_is_printed_before_slow_imports_in_a_program_only(started):
    answer_help(lambda: pytest.fail("not in a process without start_program"))
    started(False)
    with pytest.raises(SystemExit) as ended:
        answer_help(lambda: command_parser("what it does"))
    assert ended.value.code == 0
    sys.argv = ["plan.py", "--cfg", "a"]
    answer_help(lambda: pytest.fail("no help was asked for"))
