"""Tests of multigrid in PySlowFast's loop: config keys, data sets at each shape, and heads.

tests/test_examples.py runs the example, which trains with the parts of PySlowFast 1.0."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from multigrid import (
    ClipRequest,
    Cycles,
    GroupedBatchNorm3d,
    MultigridError,
    Shape,
    SteppedRate,
    make_schedule,
)
from multigrid.integrations.pyslowfast import PySlowFastMultigrid
from multigrid.integrations.pyslowfast_clips import ConfiguredClips
from multigrid.integrations.pyslowfast_loop import epoch_ends
from slowfast_patches.config.load_recipe import parse_recipe
from slowfast_patches.plan.recipe_schedule import schedule_of
from tests.multigrid.clips import Clips
from tests.multigrid.integrations.configs import VIDEOS, Asked, Net, new_config

STAGES = [
    {"shape": [[16, 4, 16], [8, 4, 24]], "until": 2, "rate": [0.1, 0.4]},
    {"shape": [8, 4, 32], "until": 4, "bn_group_size": 8},
    {"shape": [4, 8, 32], "until": 6, "rate": 0.01, "bn_group_size": 0},
]
CYCLES_OFF = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
BASE, COARSE = Shape(4, 8, 32), Shape(32, 2, 16)

pytestmark = pytest.mark.filterwarnings("ignore:the training ends", "ignore:the baseline has")


def new_multigrid(*pairs: object) -> PySlowFastMultigrid:
    return PySlowFastMultigrid(new_config(*pairs), VIDEOS)


class FailsAt(Net):
    """Network that raises an error for clips with a number of frames."""

    def __init__(self, frames: int, error: Exception) -> None:
        super().__init__()
        self.frames, self.error = frames, error

    def forward(self, pathways):
        if pathways[-1].shape[2] == self.frames:
            raise self.error
        return super().forward(pathways)

    def __deepcopy__(self, memo):
        return self  # errors cannot always be copied


# --- the schedule of a config is the trainer's


@pytest.mark.parametrize(
    "pairs",
    [
        CYCLES_OFF,
        ("NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2, "SOLVER.LRS", []),
        ("SOLVER.LR_POLICY", "cosine", "SOLVER.COSINE_AFTER_WARMUP", True, "SOLVER.MAX_EPOCH", 24),
        ("MULTIGRID.BATCH_EXPONENT", 0.5, "SOLVER.BATCH_RATE_RULE", "sqrt"),
        ("MULTIGRID.BN_BASE_SIZE", 0),
        (*CYCLES_OFF, "MULTIGRID.STAGES", STAGES, "NUM_SHARDS", 2),
    ],
    ids=str,
)
def test_the_schedule_is_the_trainer_s(pairs):
    expected = schedule_of(parse_recipe(new_config(*pairs).dump(), "the test"), VIDEOS)
    assert [*new_multigrid(*pairs).schedule.steps()] == [*expected.steps()]


def test_a_config_that_multigrid_has_changed_is_refused():
    with pytest.raises(ValueError, match="as it was loaded"):
        new_multigrid("MULTIGRID.DEFAULT_B", 4)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((), r"STAGES replaces the cycles\. Set"),
        ((*CYCLES_OFF, "SOLVER.MAX_EPOCH", 7), r"ends at epoch 6, but SOLVER.MAX_EPOCH is 7"),
        ((*CYCLES_OFF, "MULTIGRID.STAGES", [{"shape": [4, 8]}]), r"must be a list of rows such as"),
        ((*CYCLES_OFF, "MULTIGRID.STAGES", [7]), r"must be a list of rows such as .* not \[7\]"),
    ],
)
def test_stages_that_are_no_schedule_are_refused(pairs, message):
    with pytest.raises(MultigridError, match=message):
        new_multigrid("MULTIGRID.STAGES", STAGES, *pairs)


def test_the_config_has_the_epochs_and_with_a_cycle_the_baseline_s_shape():
    cfg = new_config("BN.NORM_TYPE", "sub_batchnorm")
    multigrid = PySlowFastMultigrid(cfg, VIDEOS)
    assert len(multigrid.epoch_ends) == cfg.SOLVER.MAX_EPOCH == 9
    assert (cfg.MULTIGRID.DEFAULT_B, cfg.MULTIGRID.DEFAULT_T, cfg.MULTIGRID.DEFAULT_S) == (4, 8, 32)
    assert cfg.BN.NORM_TYPE == "batchnorm"
    cfg = new_config(*CYCLES_OFF, "BN.NORM_TYPE", "sub_batchnorm")
    PySlowFastMultigrid(cfg, VIDEOS)
    assert (
        *(6, 0),
        "sub_batchnorm",
    ) == (cfg.SOLVER.MAX_EPOCH, cfg.MULTIGRID.DEFAULT_B, cfg.BN.NORM_TYPE)


# --- the data set under the config of each shape


def test_a_clip_is_read_under_its_shape_and_the_config_is_as_before():
    cfg = new_config()
    before = cfg.dump()
    cfg.freeze()
    clips = ConfiguredClips(Asked(cfg), new_config(), BASE)
    frames, *_ = clips[ClipRequest(5, 0, COARSE, 0)]
    assert [tuple(part.shape) for part in frames] == [(3, 1, 16, 16), (3, 2, 16, 16)]
    requests = [ClipRequest(v, e, COARSE, 0) for v in range(VIDEOS) for e in range(3)]
    asked = [clips[request][3]["asked"] for request in requests]
    assert {stride for stride, *_ in asked} == set(range(2, 9)), "from τ to τ·T/t"
    assert {(low, high) for _, low, high, _ in asked} == {(18, 40)}, "from min·h/H to max"
    assert clips[ClipRequest(5, 0, BASE, 0)][3]["asked"] == [2, 36, 40, False]
    assert cfg.dump() == before


def test_a_clip_may_have_as_many_frames_as_channels():
    clips = ConfiguredClips(Asked(new_config()), new_config(), BASE)
    frames, *_ = clips[ClipRequest(5, 0, Shape(8, 3, 16), 0)]
    assert frames[-1].shape == (3, 3, 16, 16)


def test_draws_follow_seed_epoch_and_video_and_leave_the_generators_alone():
    clips = ConfiguredClips(Asked(new_config()), new_config(), BASE)

    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    def draws(video, epoch, shape):
        return tuple(clips[ClipRequest(video, epoch, shape, 0)][3]["draws"])

    before = state()
    keys = [(video, epoch) for video in (0, 1) for epoch in (0, 1)]
    for of_generator in zip(*(draws(*key, BASE) for key in keys), strict=True):
        assert len(set(of_generator)) == 4, "Python, NumPy and PyTorch are each seeded"
    assert all(draws(*key, BASE) == draws(*key, COARSE) for key in keys)
    assert state() == before


def test_a_data_set_that_does_not_follow_its_config_is_refused():
    class Fixed(Asked):
        def __getitem__(self, index):
            return torch.zeros(3, 8, 32, 32), 0, index, {}

    multigrid = new_multigrid()
    with pytest.raises(ValueError, match="no attribute cfg"):
        multigrid.loader(DataLoader([1]))
    with pytest.raises(ValueError, match=r"Fixed returned a clip of shape \(3, 8, 32, 32\)"):
        next(iter(multigrid.loader(Fixed(new_config()))))


def test_a_data_set_by_request_is_asked_as_it_is():
    multigrid = new_multigrid()
    batch = next(iter(multigrid.loader(Clips(VIDEOS), by_request=True)))
    assert Shape(*batch["clips"].shape[:3]) == multigrid.schedule.at(0).shape


# --- the loop


def train(multigrid, loader, model, stop=None):
    """Train, and return what the loop saw in each iteration."""
    optimizer = torch.optim.SGD([{"params": model.parameters(), "decay": 0.5}], lr=0.0)

    def set_lr(optimizer, rate):
        optimizer.param_groups[0]["lr"] = rate * optimizer.param_groups[0]["decay"]

    seen = []
    for epoch, batches in multigrid.epochs(loader):
        for inputs, labels, index, meta in batches:
            step = multigrid.begin(optimizer, set_lr)
            assert optimizer.param_groups[0]["lr"] == step.lr * 0.5
            assert (len(labels), *inputs[-1].shape[2:4]) == (
                step.shape.batch,
                step.shape.frames,
                step.shape.crop,
            )
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            size = getattr(model.bn, "group_size", None)
            seen.append((step, epoch, size, index.tolist(), meta, loss.item()))
            if step.iteration == stop:
                return seen
        assert getattr(model.bn, "group_size", None) is None, "for precise BN"
    return seen


def test_a_training_follows_the_schedule_and_goes_on_bit_for_bit_inside_a_phase_with_workers():
    multigrid = new_multigrid()
    model = multigrid.convert(Net())
    whole = train(multigrid, multigrid.loader(Asked(new_config())), model)
    steps = list(multigrid.schedule.steps())
    assert [(step, size) for step, _, size, *_ in whole] == [(s, s.bn_group_size) for s in steps]
    assert [*dict.fromkeys(epoch for _, epoch, *_ in whole)] == list(range(9))
    first, again = new_multigrid(), new_multigrid()
    half = first.convert(Net())
    train(first, first.loader(Asked(new_config())), half, stop=11)
    assert again.schedule.phase_at(11) == again.schedule.phase_at(12)
    again.resume(iteration=12)
    loader = again.loader(Asked(new_config()), num_workers=2)
    assert str(train(again, loader, again.convert(half))) == str(whole[12:])
    assert all(map(torch.equal, half.state_dict().values(), model.state_dict().values()))


def test_a_training_is_resumed_at_an_epoch_or_an_iteration():
    """The epochs have 5, 2 and 2 iterations."""
    multigrid = new_multigrid()
    multigrid.epoch_ends = (5, 7, 9)
    assert multigrid.longest_epoch == 5

    def next_epoch():
        return next(((epoch, len(part)) for epoch, part in multigrid.epochs([])), None)

    for epoch, iteration, following in ((0, 0, (0, 5)), (1, 5, (1, 2)), (2, 7, (2, 2))):
        multigrid.resume(epoch=epoch)
        assert (multigrid.training.iteration, next_epoch()) == (iteration, following)
    multigrid.resume(epoch=3)
    assert next_epoch() is None
    multigrid.resume(iteration=6)
    assert next_epoch() == (1, 1)
    multigrid.resume()
    assert next_epoch() == (0, 5)


@pytest.mark.parametrize(
    ("videos", "ends"),
    [
        (
            16,
            (1, 4, 5),
        ),  # mini-batches of 16, 8, 4, 16 and 8 clips: they begin at 0, 16, 24, 28, 44
        (24, (2, 5, 7)),  # 52 and 56 clips begin the last two
        (8, (1, 2)),  # two passes in the first mini-batch
    ],
)
def test_an_epoch_begins_with_the_first_iteration_of_a_pass(videos, ends):
    cycles = Cycles(short_cycle=(0.5, 0.5**0.5))
    schedule = make_schedule(Shape(4, 8, 32), videos, SteppedRate((3.0,), (0.1,)), cycles)
    assert epoch_ends(schedule) == ends


def test_mini_batches_that_do_not_begin_once_each_are_refused():
    multigrid = new_multigrid()
    model = multigrid.convert(Net())
    loader = multigrid.loader(Asked(new_config()))
    batches = iter(loader)
    next(batches)
    multigrid.begin(torch.optim.SGD(model.parameters(), lr=0.0))
    next(batches)
    for again in (batches, iter(loader)):
        with pytest.raises(ValueError, match=r"The loader is at iteration \d, but 1 is the next"):
            next(again)


# --- the model


def test_heads_pool_any_map_in_training_and_their_window_in_evaluation():
    """The model is inside another module, as in a DistributedDataParallel."""
    model, clip = Net().eval(), torch.randn(4, 3, 8, 48, 48)
    expected = model([clip])
    new_multigrid().convert(nn.ModuleDict({"module": model}))
    assert torch.equal(model.eval()([clip]), expected), "a larger test crop slides the window"
    assert type(model.small) is nn.AvgPool3d
    model.train()
    for frames, crop in ((8, 32), (2, 16), (4, 23)):
        clip = torch.randn(4, 3, frames, crop, crop, requires_grad=True)
        pooled = model.projection(model.bn(model.conv(clip)).relu().mean((2, 3, 4)))
        assert torch.allclose(model([clip]), pooled, atol=1e-6)
    assert model.state_dict().keys() == Net().state_dict().keys()


def test_an_axis_with_a_window_of_one_is_not_pooled():
    """As in a head that averages the scores of the frames."""
    model = Net()
    model.pool = nn.AvgPool3d((1, 8, 8), stride=1)
    new_multigrid().convert(model)
    maps = torch.randn(2, 4, 5, 3, 3)
    pooled = model.pool.train()(maps)
    assert torch.allclose(pooled, maps.mean((3, 4), keepdim=True))


def test_a_window_of_two_is_the_whole_map_of_two():
    model = Net()
    model.conv = nn.Conv3d(3, 4, 3, (4, 4, 4), 1)  # 8 frames become 2
    model.pool = nn.AvgPool3d((2, 8, 8), stride=1)
    new_multigrid().convert(model)
    maps = torch.randn(2, 4, 5, 3, 3)
    assert torch.allclose(model.pool.train()(maps), maps.mean((2, 3, 4), keepdim=True))


class Pathways(Net):
    """Network that notes the shapes of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[list[tuple[int, ...]]]()

    def forward(self, pathways):
        self.seen.append([tuple(clip.shape) for clip in pathways])
        return super().forward(pathways)

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize(("arch", "slow"), [("slowfast", True), ("i3d", False)])
def test_a_model_is_tried_with_the_pathways_of_its_architecture(arch, slow):
    """The slow pathway has half of the frames. The key has the channels of two pathways."""
    model = Pathways()
    pairs = ("MODEL.ARCH", arch, "SLOWFAST.ALPHA", 2, "DATA.INPUT_CHANNEL_NUM", [3, 3])
    new_multigrid(*pairs).convert(model)
    shapes = [(8, 32), (2, 16), (2, 23)]
    expected = [[(1, 3, t // 2, s, s)] * slow + [(1, 3, t, s, s)] for t, s in shapes]
    assert model.seen[0] == expected[0]
    assert all(each in model.seen for each in expected)


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_in_ddp_no_longer_broadcasts_the_statistics_of_one_process(alone):
    """They are averaged. The layout of the gradients is chosen, too."""
    network = DistributedDataParallel(Net())
    assert new_multigrid().convert(network) is network
    assert not network.broadcast_buffers
    assert type(network.module.bn) is GroupedBatchNorm3d
    network([torch.zeros(4, 3, 8, 32, 32)])
    assert network._has_rebuilt_buckets


def test_a_module_that_cannot_be_divided_into_patches_is_refused():
    class Odd(nn.Module):
        def patches(self, frames, crop):
            raise ValueError("no even number")

        def set_coverage(self, coverage):
            pass

    model = Net()
    model.odd = Odd()
    with pytest.raises(ValueError, match=r"not accept clips of shape .*: no even number"):
        new_multigrid().convert(model)


def test_a_model_that_does_not_fit_a_shape_is_refused_with_the_shape():
    model = Net()
    model.small = nn.LayerNorm((8, 8, 8))  # the baseline's map
    with pytest.raises(ValueError, match="not accept clips of 2 frames of 16² pixels"):
        new_multigrid().convert(model)


def test_a_model_of_other_inputs_is_left_alone_with_a_warning(caplog):
    model = Net()
    model.conv = nn.Conv3d(7, 4, 3)
    new_multigrid().convert(model)
    assert type(model.pool) is nn.AvgPool3d
    assert "could not be run on a clip of the baseline's shape" in caplog.text


@pytest.mark.parametrize("frames", [8, 2])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MultigridError("mistake")])
def test_an_error_of_another_cause_than_the_shape_is_not_explained_by_it(frames, error):
    model = FailsAt(frames, error)
    with pytest.raises(type(error), match=r"full|mistake") as raised:
        new_multigrid().convert(model)
    assert isinstance(error, MultigridError) or raised.value is error


def test_a_bug_of_the_model_at_a_shape_keeps_its_name():
    with pytest.raises(KeyError, match="no such layer"):
        new_multigrid().convert(FailsAt(2, KeyError("no such layer")))


# --- configs that lack keys, and keys that are refused


def test_a_later_config_may_lack_the_keys_of_multigrid():
    """As in a loop that does not call add_multigrid_config."""
    cfg = new_config("SOLVER.LRS", [1, 0.1, 0.01])
    expected = PySlowFastMultigrid(cfg.clone(), VIDEOS).schedule
    for key in ("BATCH_EXPONENT", "SIZE_DIVISOR", "KEEP_FIELD_OF_VIEW"):
        del cfg["MULTIGRID"][key]
    del cfg["SOLVER"]["BATCH_RATE_RULE"]
    multigrid = PySlowFastMultigrid(cfg, VIDEOS)
    assert multigrid.schedule == expected
    assert len(multigrid.loader(Asked(cfg))) == expected.iterations
    del cfg["SOLVER"]["GAMMA"]
    cfg.MULTIGRID.DEFAULT_B = 0
    with pytest.raises(ValueError, match=r"the config has no key SOLVER\.GAMMA"):
        PySlowFastMultigrid(cfg, VIDEOS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATA.LOADER_CHUNK_SIZE", 1000),
        ("SOLVER.LARS_ON", True),
        ("MASK.ENABLE", True),
        ("AUG.GEN_MASK_LOADER", True),
        ("TASK", "ssl"),
        ("MODEL.MODEL_NAME", "ContrastiveModel"),
        ("MODEL.MODEL_NAME", "MaskMViT"),
        ("MODEL.MODEL_NAME", "PTVMViT"),
        ("MVIT.REV.ENABLE", True),
        ("DETECTION.ENABLE", True),
        ("TRAIN.DATASET", "imagenet"),
        ("TRAIN.DATASET", "ptvkinetics"),
        ("MULTIGRID.EVAL_FREQ", 0),
    ],
)
def test_a_key_that_multigrid_cannot_train_with_is_refused_by_name(key, value):
    cfg = new_config()
    *sections, name = key.split(".")
    node = cfg
    for section in sections:
        node = node.setdefault(section, CfgNode())
    node[name] = value
    with pytest.raises(ValueError, match=rf"cannot train with {key} {value}: "):
        PySlowFastMultigrid(cfg.clone(), VIDEOS)
    cfg.merge_from_list(list(CYCLES_OFF))
    assert PySlowFastMultigrid(cfg, VIDEOS).schedule.cycles is None


def test_several_refused_keys_are_named_together():
    cfg = new_config()
    cfg.TASK, cfg.MASK, cfg.SOLVER.LARS_ON = "ssl", CfgNode({"ENABLE": True}), True
    with pytest.raises(ValueError, match=r"TASK ssl, MASK\.ENABLE True: .* SOLVER\.LARS_ON True: "):
        PySlowFastMultigrid(cfg, VIDEOS)


@pytest.mark.filterwarnings("ignore:the first 4 iterations did not call step")
def test_what_a_loop_draws_depends_on_seed_iteration_and_rank_alone():
    def draws(start, stop, **options):
        multigrid = new_multigrid()
        multigrid.resume(iteration=start)
        multigrid.convert(model := Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = multigrid.loader(Asked(new_config()), **options)
        found = []
        for _ in zip(range(start, stop), loader, strict=False):
            multigrid.begin(optimizer)
            found.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
            torch.rand(start)
        return found

    whole = draws(0, 5)
    assert len({draw for row in whole for draw in row}) == 15
    assert draws(3, 5, num_workers=1) == whole[3:]
