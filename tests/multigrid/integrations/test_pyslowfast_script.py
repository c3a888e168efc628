"""What `enable` replaces in a PySlowFast: each function, in a stand-in that notes its calls.

tests/test_pyslowfast_fork.py trains with the script of a later release.
"""

from __future__ import annotations

import os
import runpy
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
from slowfast.config.defaults import get_cfg
from torch import nn
from torch.utils.data import DataLoader

from multigrid import MultigridError, Shape
from multigrid.batchnorm import GroupedBatchNorm3d
from multigrid.integrations.pyslowfast import PySlowFastMultigrid, enable
from multigrid.integrations.pyslowfast_arguments import check_arguments, explained_options
from multigrid.integrations.pyslowfast_tools import provide_private_package, train_and_test
from tests.multigrid.integrations.configs import VIDEOS, Asked, Net, new_config

COSINE = ("SOLVER.LR_POLICY", "cosine", "MULTIGRID.LONG_CYCLE", False)
CYCLES_OFF = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)

pytestmark = pytest.mark.filterwarnings("ignore:the training ends", "ignore:the baseline has")


class Writer:
    """Writer of TensorBoard, with the iterations that it was given."""

    def __init__(self) -> None:
        self.steps = list[int | None]()

    def add_scalars(self, data, global_step=None):
        self.steps.append(global_step)
        return data


def set_lr(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate * group["decay"]


FUNCTIONS = {
    "config.defaults.get_cfg": get_cfg,
    "config.defaults.assert_and_infer_cfg": lambda cfg: cfg,
    "utils.parser.parse_args": lambda **given: Namespace(**given),
    "utils.parser.load_config": lambda arguments, *file: (arguments, *file),
    "utils.multigrid.MultigridSchedule": lambda: "theirs",
    "utils.misc.aggregate_sub_bn_stats": lambda module: 3,
    "utils.misc.launch_job": lambda cfg, init_method, func: func(cfg),
    "datasets.loader.construct_loader": lambda cfg, split, **_: DataLoader(Asked(cfg), 4),
    "datasets.loader.shuffle_dataset": lambda loader, epoch: None,
    "models.build.build_model": lambda cfg, gpu_id=None: Net(),
    "models.optimizer.get_epoch_lr": lambda epoch, cfg: 7.0,
    "models.optimizer.set_lr": set_lr,
}


@pytest.fixture
def host(monkeypatch):
    """The modules of a PySlowFast by their names. `host.calls` has the calls of its functions."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowfast"]:
        monkeypatch.delitem(sys.modules, name)
    host = SimpleNamespace(calls=[])

    def module(name):
        if f"slowfast.{name}" not in sys.modules:
            monkeypatch.setitem(sys.modules, f"slowfast.{name}", ModuleType(name))
            setattr(host, name.rpartition(".")[2], sys.modules[f"slowfast.{name}"])
        return sys.modules[f"slowfast.{name}"]

    def noting(name, function):
        def noted(*args, **options):
            host.calls.append((name, args, options))
            return function(*args, **options)

        return noted

    for name, function in FUNCTIONS.items():
        place, _, last = name.rpartition(".")
        setattr(module(place), last, noting(last, function))
    module("models").made_by = sys.modules["slowfast.models.build"].build_model
    module("visualization.tensorboard_vis").TensorboardWriter = type(
        "TensorboardWriter", (Writer,), {"add_scalars": Writer.add_scalars}
    )
    return host


def train(host, cfg, *, start=0, stop=None):
    """Train as the script of a later release, and return what it saw in each iteration."""
    multigrid = host.multigrid.MultigridSchedule()
    cfg = multigrid.init_multigrid(cfg)
    model = host.models.made_by(cfg)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "decay": 0.5}], lr=0.0)
    loader = host.loader.construct_loader(cfg, "train")
    assert len(loader) == multigrid.multigrid.longest_epoch
    writer, seen = host.tensorboard_vis.TensorboardWriter(), []
    for epoch in range(start, cfg.SOLVER.MAX_EPOCH):
        assert multigrid.update_long_cycle(cfg, epoch) == (cfg, False)
        host.loader.shuffle_dataset(loader, epoch)
        size, count = len(loader), 0
        for inputs, labels, index, _ in loader:
            rate = host.optimizer.get_epoch_lr(epoch + count / size, cfg)
            host.optimizer.set_lr(optimizer, rate)
            assert optimizer.param_groups[0]["lr"] == rate * 0.5
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            writer.add_scalars({"loss": 0}, global_step=1000)
            shape = Shape(len(labels), *inputs[-1].shape[2:4])
            seen.append((shape, rate, model.bn.group_size, index.tolist()))
            count += 1
        assert count == size
        if epoch == stop:
            break
    return SimpleNamespace(
        seen=seen, steps=writer.steps, multigrid=multigrid, cfg=cfg, model=model, loader=loader
    )


def called(host, name):
    """Return the arguments of the latest call of a function of the host."""
    return [(args, options) for found, args, options in host.calls if found == name][-1]


def test_the_script_trains_the_schedule(host, caplog):
    """With a cosine, each iteration has a rate of its own."""
    caplog.set_level("INFO")
    enable()
    schedule = PySlowFastMultigrid(new_config(*COSINE), VIDEOS).schedule
    run = train(host, new_config(*COSINE))
    assert "replaces in PySlowFast: config.defaults.get_cfg, " in caplog.text
    expected = [(step.shape, step.lr, step.bn_group_size) for step in schedule.steps()]
    assert [row[:3] for row in run.seen] == expected
    assert run.steps == list(range(schedule.iterations)), "TensorBoard counts iterations"
    assert host.optimizer.get_epoch_lr(99.0, run.cfg) == schedule.at(schedule.iterations - 1).lr
    assert run.loader.dataset.cfg is not run.cfg, "attributes are those of the host's loader"
    assert isinstance(run.model.bn, GroupedBatchNorm3d)


def test_the_phases_are_listed_by_the_epoch_in_which_they_end(host):
    enable()
    run = train(host, new_config(), stop=0)
    stages, shapes, ends = zip(*run.multigrid.schedule, strict=True)
    assert list(ends) == sorted(set(ends))
    assert list(stages) == sorted(stages)
    assert (shapes[-1], ends[-1]) == ([4, 8, 32], run.cfg.SOLVER.MAX_EPOCH)
    phases = run.multigrid.multigrid.schedule.phases
    ends_of = (0, *run.multigrid.multigrid.epoch_ends)
    for stage, (batch, frames, crop), end in run.multigrid.schedule:
        found = [p for p in phases if ends_of[end - 1] < p.stop <= ends_of[end]]
        assert (found[0].stage, found[0].base_shape) == (stage, Shape(batch, frames, crop))


def test_an_epoch_started_first_is_that_of_the_whole_training(host):
    """As after a checkpoint. TensorBoard counts on."""
    enable()
    whole = train(host, new_config())
    rest = train(host, new_config(), start=4)
    assert rest.seen == whole.seen[-len(rest.seen) :]
    assert rest.steps == whole.steps[-len(rest.seen) :]
    assert 0 < len(rest.seen) < len(whole.seen)


def test_one_loader_serves_all_epochs_until_another_epoch_is_started(host):
    """Each loader starts the worker processes."""
    enable()
    made = PySlowFastMultigrid.loader
    with mock.patch.object(PySlowFastMultigrid, "loader", autospec=True, side_effect=made) as count:
        run = train(host, new_config(), stop=1)
        assert count.call_count == 1
        host.loader.shuffle_dataset(run.loader, 0)
        assert count.call_count == 2


def test_other_loaders_are_those_of_the_baseline(host):
    enable()
    run = train(host, new_config(), stop=0)
    for split, precise in (("val", False), ("test", False), ("train", True)):
        given = host.loader.construct_loader(run.cfg, split, precise, drop=1)
        assert type(given) is DataLoader
        (cfg, found), options = called(host, "construct_loader")
        assert (found, options) == (split, {"is_precise_bn": precise, "drop": 1})
        assert (cfg.MULTIGRID.LONG_CYCLE, cfg.MULTIGRID.DEFAULT_B) == (False, 0)
        host.loader.shuffle_dataset(given, 5)
        assert called(host, "shuffle_dataset") == ((given, 5), {})
    assert run.cfg.MULTIGRID.LONG_CYCLE


def test_without_a_cycle_every_call_is_the_host_s_also_after_a_training_with_cycles(host):
    enable()
    train(host, new_config(), stop=0)
    cfg = host.defaults.assert_and_infer_cfg(new_config(*CYCLES_OFF))
    model = host.models.made_by(cfg, 0)
    assert called(host, "build_model") == ((cfg, 0), {})
    assert type(model.bn) is nn.BatchNorm3d
    host.loader.construct_loader(cfg, "train")
    assert called(host, "construct_loader") == ((cfg, "train"), {"is_precise_bn": False})
    assert host.optimizer.get_epoch_lr(2.5, cfg) == 7.0
    assert called(host, "get_epoch_lr") == ((2.5, cfg), {})
    optimizer = torch.optim.SGD([{"params": model.parameters(), "decay": 0.5}], lr=0.0)
    host.optimizer.set_lr(optimizer, 3.0)
    assert optimizer.param_groups[0]["lr"] == 1.5
    writer = host.tensorboard_vis.TensorboardWriter()
    assert writer.add_scalars({"loss": 1}, global_step=8) == {"loss": 1}
    assert writer.steps == [8]
    with mock.patch("multigrid.integrations.pyslowfast_fork.average_running_stats") as average:
        assert host.misc.aggregate_sub_bn_stats(model) == 3
    assert not average.called


def test_a_model_that_is_built_before_the_schedule_has_plain_batch_normalisation(host):
    """The first model after the schedule is converted, and no other one."""
    enable()
    cfg = new_config("BN.NORM_TYPE", "sub_batchnorm")
    model = host.models.made_by(cfg)
    assert called(host, "build_model")[0][0].BN.NORM_TYPE == "batchnorm"
    assert type(model.bn) is nn.BatchNorm3d
    run = train(host, new_config(), stop=0)
    assert type(run.model.bn) is GroupedBatchNorm3d
    assert type(host.models.made_by(run.cfg).bn) is nn.BatchNorm3d


def test_running_statistics_are_averaged_over_processes_in_multigrid_training(host):
    enable()
    run = train(host, new_config(), stop=0)
    with mock.patch("multigrid.integrations.pyslowfast_fork.average_running_stats") as average:
        assert host.misc.aggregate_sub_bn_stats(run.model) == 3
    average.assert_called_once_with(run.model)


def test_a_config_gets_the_keys_and_one_that_was_loaded_is_checked(host):
    enable()
    assert host.defaults.get_cfg().MULTIGRID.BATCH_EXPONENT == 1.0
    with pytest.raises(MultigridError, match=r"DETECTION\.ENABLE True"):
        host.defaults.assert_and_infer_cfg(new_config("DETECTION.ENABLE", True))
    for pairs in (("TRAIN.ENABLE", False), CYCLES_OFF):
        cfg = new_config("DETECTION.ENABLE", True, *pairs)
        assert host.defaults.assert_and_infer_cfg(cfg) is cfg


def test_stages_alone_start_multigrid(host):
    enable()
    rows = [{"shape": [8, 4, 16], "until": 6, "rate": 0.1}]
    cfg = new_config(*CYCLES_OFF, "MULTIGRID.STAGES", rows)
    assert host.defaults.assert_and_infer_cfg(cfg).MULTIGRID.LONG_CYCLE, "the script asks for it"
    plain = host.defaults.assert_and_infer_cfg(new_config(*CYCLES_OFF))
    assert not plain.MULTIGRID.LONG_CYCLE


def test_a_training_without_a_cycle_is_refused_where_cycles_are_required(host):
    enable(require_cycles=True)
    with pytest.raises(MultigridError, match="would train the baseline"):
        host.defaults.assert_and_infer_cfg(new_config(*CYCLES_OFF))
    host.defaults.assert_and_infer_cfg(new_config(*CYCLES_OFF, "TRAIN.ENABLE", False))
    host.defaults.assert_and_infer_cfg(new_config())


def test_a_rate_without_a_schedule_is_refused(host):
    """A script that does not call MultigridSchedule would train the baseline."""
    enable()
    with pytest.raises(MultigridError, match=r"did not call MultigridSchedule.*by_hand"):
        host.optimizer.get_epoch_lr(0.0, new_config())
    train(host, new_config(), stop=0)
    host.defaults.assert_and_infer_cfg(new_config())
    with pytest.raises(MultigridError, match="did not call MultigridSchedule"):
        host.optimizer.get_epoch_lr(0.0, new_config())


def test_keys_that_the_parser_takes_for_files_are_refused(host, tmp_path):
    enable()
    (tmp_path / "a.yaml").touch()
    given = host.parser.parse_args(cfg_files=[str(tmp_path / "a.yaml")], opts=["A.B", "1"])
    assert given.opts == ["A.B", "1"]
    with pytest.raises(MultigridError, match=r"--cfg \S+a.yaml --opts TRAIN.LR 1 A.B 1$"):
        host.parser.parse_args(cfg_files=[*given.cfg_files, "TRAIN.LR", "1"], opts=given.opts)


def test_every_alias_is_replaced_once(host):
    theirs = host.build.build_model
    enable()
    first = host.build.build_model
    assert first is not theirs
    assert host.models.made_by is first
    enable()
    assert host.build.build_model is first


# --- the folder tools/


def test_a_private_package_names_the_folder_of_the_tools(tmp_path, monkeypatch):
    names = ["vision", "vision.fair", "vision.fair.slowfast", "vision.fair.slowfast.tools"]
    for name in [*names, "vision.fair.slowfast.tools.some_net"]:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "some_net.py").write_text("found = 5\n")
    provide_private_package(tmp_path)
    from vision.fair.slowfast.tools.some_net import found

    assert found == 5
    with pytest.raises(ImportError):
        __import__("vision.some_net")
    provide_private_package(tmp_path / "other")
    assert sys.modules["vision.fair.slowfast.tools"].__path__ == [str(tmp_path)]


def test_an_installed_package_of_the_name_stays(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vision", None)
    monkeypatch.delitem(sys.modules, "vision")
    (tmp_path / "vision.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    provide_private_package(tmp_path)
    assert "vision" not in sys.modules


@pytest.mark.parametrize("files", [["a.yaml", "b.yaml"], []])
def test_each_config_file_is_trained_and_tested_as_it_says(host, files, monkeypatch):
    done = []
    for name in ("train", "test"):
        module = ModuleType(f"{name}_net")
        setattr(module, name, lambda cfg, name=name: done.append((name, cfg.file)))
        monkeypatch.setitem(sys.modules, f"{name}_net", module)

    def load(arguments, file="given"):
        train, test = file != "b.yaml", file != "a.yaml"
        sections = (SimpleNamespace(ENABLE=is_on) for is_on in (train, test))
        return SimpleNamespace(file=file, **dict(zip(("TRAIN", "TEST"), sections, strict=True)))

    arguments = Namespace(init_method="tcp", **{"cfg_files": files} if files else {})
    monkeypatch.setattr(host.parser, "parse_args", lambda: arguments)
    monkeypatch.setattr(host.parser, "load_config", load)
    train_and_test()
    given = [("train", "given"), ("test", "given")]
    assert done == ([("train", "a.yaml"), ("test", "b.yaml")] if files else given)
    assert called(host, "launch_job")[1]["init_method"] == "tcp"


# --- the command


@pytest.fixture
def command(host, tmp_path, monkeypatch):
    """`command(text, name)`: run a script with such a text by the command, with one argument."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("MULTIGRID_SCRIPT", raising=False)
    monkeypatch.setitem(sys.modules, "vision", ModuleType("vision"))
    monkeypatch.chdir(tmp_path)

    def run(text, name="run_net.py"):
        (tools / name).write_text(text)
        monkeypatch.setattr(sys, "argv", ["-m", f"tools/{name}", "word"])
        monkeypatch.delitem(sys.modules, "multigrid.integrations.pyslowfast", raising=False)
        return runpy.run_module("multigrid.integrations.pyslowfast", run_name="__main__")

    return run


def test_a_script_runs_as_if_started_alone_with_multigrid_enabled(command, host, tmp_path):
    text = "import sys, os; seen = sys.argv, sys.path[0], os.environ['MULTIGRID_SCRIPT'], __file__"
    seen = command(f"{text}, __name__\n")["seen"]
    script = str(tmp_path / "tools" / "run_net.py")
    assert seen == (
        [str(Path("tools/run_net.py")), "word"],
        str(Path(script).parent),
        script,
        script,
        "__main__",
    )
    assert os.environ.pop("MULTIGRID_SCRIPT") == script
    with pytest.raises(MultigridError, match="would train the baseline"):
        host.defaults.assert_and_infer_cfg(new_config(*CYCLES_OFF))


def test_the_script_with_functions_alone_is_started_by_the_command(command, host, monkeypatch):
    monkeypatch.setitem(sys.modules, "train_net", SimpleNamespace(train=lambda cfg: cfg))
    cfg = new_config("TEST.ENABLE", False)
    monkeypatch.setattr(host.parser, "load_config", lambda arguments: cfg)
    monkeypatch.setattr(host.parser, "parse_args", lambda: Namespace(init_method="tcp"))
    command("raise RuntimeError", name="train_net.py")
    assert called(host, "launch_job")[1]["cfg"] is cfg


def test_a_mistake_ends_the_command_with_its_message_and_a_bug_with_a_traceback(command):
    raised = "from multigrid import MultigridError\nraise MultigridError('Too short.')\n"
    with pytest.raises(SystemExit, match=r"^error: Too short\.$"):
        command(raised)
    spawned = "from torch.multiprocessing.spawn import ProcessRaisedException\n"
    with pytest.raises(Exception, match="a bug"):
        command(f"{spawned}raise ProcessRaisedException('a bug', 0, 1)\n")
    with pytest.raises(ModuleNotFoundError) as error:
        command("import no_such_package\n")
    assert "start tools/train_net.py instead" in error.value.__notes__[0]


def test_a_pyslowfast_that_cannot_be_enabled_ends_the_command(command, host):
    del host.build.build_model
    with pytest.raises(SystemExit, match=r"cannot be enabled: .* no slowfast.models.build.build_m"):
        command("raise RuntimeError")


@pytest.mark.parametrize("words", [[], ["-h"], ["--help", "tools/run_net.py"]])
def test_the_command_tells_how_it_is_used(host, monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["-m", *words])
    monkeypatch.delitem(sys.modules, "multigrid.integrations.pyslowfast", raising=False)
    with pytest.raises(SystemExit, match=r"(?s)^usage: .*SCRIPT is tools/run_net\.py"):
        runpy.run_module("multigrid.integrations.pyslowfast", run_name="__main__")


def test_a_script_that_does_not_exist_is_named(host, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["-m", "tools/none.py"])
    monkeypatch.delitem(sys.modules, "multigrid.integrations.pyslowfast", raising=False)
    with pytest.raises(SystemExit, match=r"^error: there is no script tools/none\.py in "):
        runpy.run_module("multigrid.integrations.pyslowfast", run_name="__main__")


# --- the line of the command


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run.py", "--cfg", "a.yaml", "--opts", "A.B", "1"], 2, "write: --cfg a.yaml A.B 1\n"),
        (["run.py", "--cfg", "a.yaml", "A.B", "1"], 2, ""),
        (["run.py", "--opts", "--help"], 0, ""),
    ],
)
def test_a_parser_that_does_not_know_opts_is_explained(words, code, told, capsys):
    with pytest.raises(SystemExit) as end, explained_options(words):
        sys.exit(code)
    assert end.value.code == code
    err = capsys.readouterr().err
    assert err.endswith(told)
    assert bool(err) is bool(told)


def test_arguments_of_every_release_are_checked_for_files(tmp_path):
    """A release of 2020 has no cfg_files, and a parser may leave out the options."""
    (tmp_path / "a.yaml").touch()
    check_arguments(Namespace(cfg_file="a.yaml", opts=["A.B", "1"]))
    check_arguments(Namespace(cfg_files=[str(tmp_path / "a.yaml")], opts=None))
    check_arguments(Namespace(cfg_files=None))
    with pytest.raises(
        MultigridError, match=r"no config file A\.B.*write: --cfg FILE --opts A\.B 1$"
    ):
        check_arguments(Namespace(cfg_files=["A.B", "1"], opts=None))
