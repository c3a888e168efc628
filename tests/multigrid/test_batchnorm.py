"""Batch normalisation over a fixed number of clips: groups, gradients, statistics, processes."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from multigrid.batchnorm import (
    GroupedBatchNorm3d,
    average_running_stats,
    convert_batchnorm,
    group_order,
    set_group_size,
)

FORMATS = [torch.contiguous_format, torch.channels_last_3d]
WORKER = Path(__file__).with_name("batchnorm_worker.py")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _norm(channels: int, k: int | None, **options: object) -> GroupedBatchNorm3d:
    norm = GroupedBatchNorm3d(channels, **options)  # type: ignore[arg-type]
    norm.group_size = k
    return norm


def _randomized(norm: nn.BatchNorm3d) -> nn.BatchNorm3d:
    generator = torch.Generator().manual_seed(1)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0, generator=generator)
    return norm


def _clips(*shape: int, memory_format: torch.memory_format = FORMATS[0], **options) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, **options) * 3 + 2
    return x.contiguous(memory_format=memory_format)


def _train(module: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    """The output and the gradients of x and of the parameters, for the output's gradient."""
    x = x.clone().requires_grad_()
    output = module(x)
    output.backward(grad)
    assert x.grad is not None
    return [output.detach(), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


class _Stream(nn.Module):
    """`norm` on a run of the stream: arranged in groups, normalised, put back in order."""

    def __init__(self, norm: GroupedBatchNorm3d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        order = torch.tensor(group_order(len(x), self.norm.group_size))
        return self.norm(x[order])[order.argsort()]


class _Chunks(nn.Module):
    """The specification: nn.BatchNorm3d over each run of k clips."""

    def __init__(self, norm: nn.BatchNorm3d, k: int) -> None:
        super().__init__()
        self.norm, self.k = norm, k

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(run) for run in x.split(self.k)])


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 4),
    k=st.integers(2, 8),
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
    memory_format=st.sampled_from(FORMATS),
)
def test_every_group_has_mean_0_and_variance_1(groups, k, channels, size, memory_format):
    x = _clips(groups * k, channels, *size, memory_format=memory_format, dtype=torch.float64)
    x[:k] += 100  # another level in the first group: it must not leak into the others
    y = _Stream(_norm(channels, k, eps=1e-14, dtype=torch.float64))(x).detach()
    for run in y.split(k):
        values = run.transpose(0, 1).flatten(1)
        torch.testing.assert_close(
            values.mean(1), torch.zeros(channels).double(), atol=1e-8, rtol=0
        )
        torch.testing.assert_close(values.var(1, correction=0), torch.ones(channels).double())


def test_a_group_is_every_nth_clip_by_hand():
    x = torch.tensor([1.0, 10.0, 3.0, 30.0]).view(4, 1, 1, 1, 1)
    y = _norm(1, 2, eps=1e-9)(x)
    torch.testing.assert_close(y.flatten(), torch.tensor([-1.0, -1.0, 1.0, 1.0]))


def test_group_order_by_hand():
    assert group_order(6, 2) == [0, 2, 4, 1, 3, 5]  # groups (0, 1), (2, 3), (4, 5)
    assert group_order(6, 3) == [0, 3, 1, 4, 2, 5]  # groups (0, 1, 2), (3, 4, 5)
    for whole in (None, 6, 12):
        assert group_order(6, whole) == [0, 1, 2, 3, 4, 5]


@given(groups=st.integers(1, 6), k=st.integers(1, 9))
def test_group_order_makes_runs_of_the_stream_the_groups(groups, k):
    order = group_order(groups * k, k)
    assert [order[g::groups] for g in range(groups)] == [
        list(range(g * k, (g + 1) * k)) for g in range(groups)
    ]


def test_running_statistics_by_hand():
    # Groups (1, 3) and (10, 30): means 2 and 20, unbiased variances 2 and 200.
    x = torch.tensor([1.0, 10.0, 3.0, 30.0]).view(4, 1, 1, 1, 1)
    norm = _norm(1, 2, momentum=0.5)
    norm(x)
    assert norm.running_mean.item() == pytest.approx(0.5 * 0 + 0.5 * 11)
    assert norm.running_var.item() == pytest.approx(0.5 * 1 + 0.5 * 101)
    norm(x)
    assert norm.running_mean.item() == pytest.approx(8.25)
    assert norm.num_batches_tracked.item() == 2


def test_running_statistics_without_momentum_are_the_average_of_all_steps():
    x = torch.tensor([1.0, 10.0, 3.0, 30.0]).view(4, 1, 1, 1, 1)
    norm = _norm(1, 2, momentum=None)
    norm(x)
    assert norm.running_mean.item() == pytest.approx(11)
    norm(x + 6)
    assert norm.running_mean.item() == pytest.approx((11 + 17) / 2)
    assert norm.running_var.item() == pytest.approx(101)


@pytest.mark.parametrize("k", [None, 6])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_group_is_batchnorm_bit_for_bit(k, momentum):
    x, grad = _clips(6, 4, 2, 5, 5), _clips(6, 4, 2, 5, 5)
    plain = _randomized(nn.BatchNorm3d(4, momentum=momentum))
    ours = _randomized(_norm(4, k, momentum=momentum))
    for a, b in zip(_train(ours, x, grad), _train(plain, x, grad), strict=True):
        assert torch.equal(a, b)
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("size", [(2, 5, 7), (1, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize("affine", [True, False])
def test_groups_equal_batchnorm_on_each_run(memory_format, size, channels, affine):
    x = _clips(12, channels, *size, memory_format=memory_format)
    grad = torch.linspace(-1, 2, x.numel()).view(x.shape)  # contiguous, whatever x is
    plain = _randomized(nn.BatchNorm3d(channels, affine=affine))
    ours = _randomized(_norm(channels, 4, affine=affine))
    expected = _train(_Chunks(plain, 4), x, grad)
    for a, b in zip(_train(_Stream(ours), x, grad), expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_half_precision_input_with_single_precision_parameters(dtype, memory_format):
    x = _clips(8, 6, 2, 4, 4, memory_format=memory_format).to(dtype)
    grad = _clips(8, 6, 2, 4, 4).to(dtype)
    results = _train(_Stream(_randomized(_norm(6, 4))), x, grad)
    expected = _train(_Chunks(_randomized(nn.BatchNorm3d(6)), 4), x, grad)
    assert [r.dtype for r in results] == [dtype, dtype, torch.float32, torch.float32]
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b, atol=0.05, rtol=0.02)


def test_under_autocast():
    model = nn.Sequential(nn.Conv3d(3, 4, 1), _norm(4, 2))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(_clips(4, 3, 2, 3, 3))
    output.float().square().sum().backward()
    assert output.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("affine", [True, False])
def test_gradients_agree_with_finite_differences(memory_format, affine):
    x = _clips(6, 2, 1, 2, 2, memory_format=memory_format, dtype=torch.float64).requires_grad_()
    norm = _randomized(_norm(2, 3, affine=affine, dtype=torch.float64))
    parameters = tuple(norm.parameters())

    def normalized(x: Tensor, *_: Tensor) -> Tensor:
        return norm(x)

    assert torch.autograd.gradcheck(normalized, (x, *parameters))


def test_strided_input_and_expanded_gradient():
    x = _clips(8, 4, 2, 5, 10)[..., ::2]
    strided = _train(_norm(4, 2), x, torch.ones(()).expand(x.shape))
    packed = _train(_norm(4, 2), x.contiguous(), torch.ones(x.shape))
    for a, b in zip(strided, packed, strict=True):
        torch.testing.assert_close(a, b)


def test_without_running_statistics():
    norm = _norm(3, 2, track_running_stats=False)
    x = _clips(4, 3, 2, 3, 3)
    expected = torch.cat([nn.BatchNorm3d(3)(run) for run in x.split(2)])
    torch.testing.assert_close(_Stream(norm)(x), expected)
    assert norm.running_mean is None


def test_evaluation_ignores_the_group_size():
    x = _clips(5, 3, 2, 4, 4)  # 5 clips form no groups of 4
    ours, plain = _norm(3, 4).eval(), nn.BatchNorm3d(3).eval()
    for norm in (ours, plain):
        norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(ours(x), plain(x))
    assert ours.num_batches_tracked.item() == 0


def test_state_dict_is_that_of_batchnorm():
    ours, plain = _norm(3, 2), _randomized(nn.BatchNorm3d(3))
    plain(_clips(4, 3, 2, 4, 4))
    ours.load_state_dict(plain.state_dict())
    again = nn.BatchNorm3d(3)
    again.load_state_dict(ours.state_dict())
    assert list(ours.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_convert_keeps_parameters_names_and_attributes():
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Sequential(nn.BatchNorm3d(4, eps=1e-3), nn.ReLU()))
    model[1][0].transform_final_bn = True
    model[1][0].eval()
    before = dict(model.named_parameters()), dict(model.named_buffers())
    assert convert_batchnorm(model) is model
    norm = model[1][0]
    assert type(norm) is GroupedBatchNorm3d
    assert (norm.eps, norm.transform_final_bn, norm.training) == (1e-3, True, False)
    assert norm.group_size is None
    for old, new in zip(before, (model.named_parameters(), model.named_buffers()), strict=True):
        found = dict(new)
        assert list(found) == list(old)
        assert all(found[name] is old[name] for name in old)


def test_convert_leaves_other_norms_and_keeps_shared_modules_shared():
    shared = nn.BatchNorm3d(4)
    model = nn.ModuleList([shared, nn.InstanceNorm3d(4), shared])
    convert_batchnorm(model)
    assert [type(m) for m in model] == [GroupedBatchNorm3d, nn.InstanceNorm3d, GroupedBatchNorm3d]
    assert model[0] is model[2]
    first = model[0]
    assert convert_batchnorm(model)[0] is first  # converting twice changes nothing


class _Special(nn.BatchNorm3d):
    pass


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (nn.BatchNorm1d, r"model.trunk = convert_batchnorm\(model.trunk\)"),
        (nn.BatchNorm2d, "put nn.BatchNorm3d in its place"),
        (nn.SyncBatchNorm, "leave out convert_sync_batchnorm"),
        (_Special, "put nn.BatchNorm3d in its place"),
    ],
)
def test_other_batch_normalisation_is_refused_by_name(kind, advice):
    model = nn.ModuleDict({"trunk": nn.BatchNorm3d(4), "head": nn.Sequential(kind(4))})
    with pytest.raises(ValueError, match=rf"not head\.0 \({kind.__name__}\): .*{advice}"):
        convert_batchnorm(model)
    assert type(model["trunk"]) is nn.BatchNorm3d, "nothing is half converted"
    model["trunk"] = convert_batchnorm(model["trunk"])
    set_group_size(model, 2)
    assert (model["trunk"].group_size, type(model["head"][0])) == (2, kind)


def test_of_many_the_first_are_named():
    with pytest.raises(ValueError, match=r"not 0 \(BatchNorm2d\), 1 .*, 2 .* and 2 more: "):
        convert_batchnorm(nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(5))))


def test_a_group_size_without_a_grouped_norm_warns():
    model = nn.Sequential(nn.BatchNorm3d(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_group_size(model, None)
    with pytest.warns(UserWarning, match=r"group_size 8 has no effect.*convert_batchnorm\(model\)"):
        set_group_size(model, 8)


def test_convert_a_single_norm_and_set_its_group_size():
    norm = convert_batchnorm(nn.BatchNorm3d(4))
    set_group_size(norm, 8)
    assert norm.group_size == 8
    assert "group_size" not in "".join(norm.state_dict())
    set_group_size(norm, None)
    assert norm.group_size is None


def test_optimizer_made_before_converting_still_trains():
    model = nn.Sequential(nn.BatchNorm3d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    set_group_size(convert_batchnorm(model), 2)
    model(_clips(4, 4, 2, 3, 3)).square().sum().backward()
    optimizer.step()
    assert (model[0].weight != 1).all()


def test_clips_that_form_no_groups_are_refused_with_the_numbers():
    norm = _norm(2, 8)
    for clips in (12, 3, 4):
        with pytest.raises(
            ValueError, match=rf"k = 8 .* {clips} clips .* 1 process.* multiple of 8"
        ):
            norm(_clips(clips, 2, 2, 3, 3))
    assert norm.num_batches_tracked.item() == 0


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 1 clip, or None, got 0"):
        set_group_size(nn.BatchNorm3d(2), 0)
    with pytest.raises(ValueError, match="more than 1 value"):
        _norm(2, 1)(_clips(4, 2, 1, 1, 1))
    with pytest.raises(ValueError, match="5D"):
        _norm(2, 1)(_clips(4, 2, 3, 3))


def test_averaging_changes_nothing_in_a_single_process():
    norm = _norm(2, 2)
    norm(_clips(4, 2, 2, 3, 3))
    before = norm.running_mean.clone()
    average_running_stats(norm)
    assert torch.equal(norm.running_mean, before)


def _in_processes(world: int, folder: Path) -> list[dict]:
    """Run the worker in `world` processes that share `folder`; what each of them saved."""
    command = [sys.executable, str(WORKER)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [w.returncode for w in workers] == [0] * world, "\n".join(errors)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(world)]


@pytest.mark.parametrize(("world", "possible"), [(2, "use 8, a"), (4, "use 4, 8, a")])
def test_processes_share_statistics_and_gradients(tmp_path, world, possible):
    """8 clips over gloo processes give what one process gives: shared, equal and split groups."""
    cases = []
    for k in (1, 2, 4, 8):
        for memory_format in FORMATS:
            x = _clips(8, 3, 2, 4, 4, memory_format=memory_format, dtype=torch.float64)
            cases.append((k, x + 50, torch.linspace(-1, 2, x.numel()).double().view(x.shape)))
    halves = [(8, x.bfloat16(), grad.bfloat16()) for k, x, grad in cases[-len(FORMATS) :]]
    torch.save([*cases, *halves], tmp_path / "cases.pt")
    ranks = _in_processes(world, tmp_path)
    for case, (k, x, loss_weight) in enumerate(cases):
        norm = _norm(3, k, dtype=torch.float64)
        output, grad_x, weight, bias = _train(_Stream(norm), x, loss_weight)
        found = [rank["cases"][case] for rank in ranks]
        for name, expected in (("output", output), ("x", grad_x)):
            torch.testing.assert_close(
                torch.cat([f[name] for f in found]), expected, rtol=1e-10, atol=1e-10
            )
        for name, expected in (("weight", weight), ("bias", bias)):
            torch.testing.assert_close(sum(f[name] for f in found), expected, rtol=1e-10, atol=0)
        for name in ("running_mean", "running_var"):
            for rank in found:
                torch.testing.assert_close(rank[name], getattr(norm, name), rtol=1e-10, atol=0)
    for case, (k, x, loss_weight) in enumerate(halves, len(cases)):
        output, grad_x, *_ = _train(_Stream(_norm(3, k)), x, loss_weight)
        for name, expected in (("output", output), ("x", grad_x)):
            found = torch.cat([rank["cases"][case][name] for rank in ranks])
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
        for rank in ranks:
            assert rank["cases"][case]["running_var"].dtype == torch.float32
    for rank in ranks:
        unformed = zip((2, 4), rank["unformed"], strict=False)
        assert all(
            f"call form_groups(schedule), or form_neighbours({m})," in e for m, e in unformed
        )
        assert len(rank["unformed"]) == world // 2
        assert rank["minutes"] == [7] * (world // 2), "torch gives groups a time of their own"
        assert f"from {8 // world} clips per process on {world} process" in rank["error"]
        assert f"{possible} multiple of 16 clips per process" in rank["error"]
