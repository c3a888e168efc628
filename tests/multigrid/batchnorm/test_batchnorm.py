"""Tests of batch normalisation over groups in one process: groups, gradients, layouts."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from multigrid.batchnorm import (
    GroupedBatchNorm3d,
    convert_batchnorm,
    group_order,
    set_group_size,
)

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last_3d


@pytest.fixture(params=[CONTIGUOUS, CHANNELS_LAST], ids=str)
def layout(request: pytest.FixtureRequest) -> torch.memory_format:
    """Memory format of the input."""
    return request.param


def _norm(channels: int, k: int | None, **options: object) -> GroupedBatchNorm3d:
    norm = _randomized(GroupedBatchNorm3d(channels, **options))  # type: ignore[arg-type]
    norm.group_size = k
    return norm


def _randomized(norm: nn.BatchNorm3d) -> nn.BatchNorm3d:
    generator = torch.Generator().manual_seed(1)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0, generator=generator)
    return norm


def _clips(*shape: int, layout: torch.memory_format = CONTIGUOUS, seed: int = 0, **options):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, **options) * 3 + 2
    return x.contiguous(memory_format=layout)


def _train(module: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Return the output and the gradients of x and the parameters, given the output's gradient."""
    x = x.detach().requires_grad_()
    output = module(x)
    return (output.detach(), *torch.autograd.grad(output, (x, *module.parameters()), grad))


class _Stream(nn.Module):
    """Module that applies `norm` to a run of the stream, arranged in groups and put back."""

    def __init__(self, norm: GroupedBatchNorm3d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        order = torch.tensor(group_order(len(x), self.norm.group_size))
        return self.norm(x[order])[order.argsort()]


class _Chunks(nn.Module):
    """Reference implementation: nn.BatchNorm3d over each run of k clips."""

    def __init__(self, norm: nn.BatchNorm3d, k: int) -> None:
        super().__init__()
        self.norm, self.k = norm, k

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(run) for run in x.split(self.k)])


def test_groups_and_running_statistics_by_hand(layout):
    """Groups (1, 3) and (10, 30), every second clip: means 2 and 20, unbiased variances 2, 200.

    The other channel is the negative of this one.
    """
    x = torch.tensor([1.0, 10.0, 3.0, 30.0]).view(4, 1, 1, 1, 1)
    x = torch.cat((x, -x), 1).contiguous(memory_format=layout)
    norm = _norm(2, 2, momentum=0.5, eps=1e-9, affine=False)
    torch.testing.assert_close(norm(x)[:, 0].flatten(), torch.tensor([-1.0, -1.0, 1.0, 1.0]))
    assert norm.running_mean.tolist() == pytest.approx([0.5 * 0 + 0.5 * 11, 0.5 * 0 - 0.5 * 11])
    assert norm.running_var.tolist() == pytest.approx([0.5 * 1 + 0.5 * 101] * 2)
    norm(x)
    assert norm.running_mean.tolist() == pytest.approx([8.25, -8.25])
    assert norm.num_batches_tracked.item() == 2
    average = _norm(2, 2, momentum=None)  # of all steps
    average(x)
    average(x + 6)
    assert average.running_mean.tolist() == pytest.approx([(11 + 17) / 2, (-11 - 5) / 2])


@pytest.mark.parametrize(("places", "is_transposed"), [(1, True), (7, True), (8, False)])
def test_clips_with_few_places_are_transposed_for_the_kernel_of_the_cpu(places, is_transposed):
    """The kernel processes 8 values at once. With fewer places, it is slow along the places."""
    names = set[str]()
    nodes = [_norm(3, 2)(_clips(4, 3, 1, 1, places).requires_grad_()).grad_fn]
    while nodes:
        node = nodes.pop()
        names.add(node.name())
        nodes += [following for following, _ in node.next_functions if following is not None]
    assert ("TransposeBackward0" in names) is is_transposed, names


def test_an_output_has_the_memory_format_of_its_input():
    """An input that is contiguous in no format has a contiguous output."""
    norm = _norm(3, 2)
    x = _clips(4, 3, 2, 5, 4)
    channels_last = norm(x.contiguous(memory_format=CHANNELS_LAST))
    assert channels_last.is_contiguous(memory_format=CHANNELS_LAST)
    for contiguous in (norm(x), norm(x.transpose(3, 4))):
        assert contiguous.is_contiguous()
        assert not contiguous.is_contiguous(memory_format=CHANNELS_LAST)
    assert torch.equal(norm(x.transpose(3, 4)), norm(x.transpose(3, 4).contiguous()))


def test_group_order_by_hand():
    assert group_order(6, 2) == [0, 2, 4, 1, 3, 5]  # groups (0, 1), (2, 3), (4, 5)
    assert group_order(6, 3) == [0, 3, 1, 4, 2, 5]  # groups (0, 1, 2), (3, 4, 5)
    for whole in (None, 6, 12):
        assert group_order(6, whole) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("k", [None, 6])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_group_is_batchnorm_bit_for_bit(k, momentum):
    x, grad = _clips(6, 4, 2, 5, 5), _clips(6, 4, 2, 5, 5, seed=2)
    plain = _randomized(nn.BatchNorm3d(4, momentum=momentum))
    ours = _norm(4, k, momentum=momentum)
    for a, b in zip(_train(ours, x, grad), _train(plain, x, grad), strict=True):
        assert torch.equal(a, b)
    assert list(ours.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


@pytest.mark.parametrize("size", [(2, 5, 7), (1, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize("affine", [True, False])
def test_groups_equal_batchnorm_on_each_run(layout, size, channels, affine):
    options = {"affine": affine, "dtype": torch.float64}
    x = _clips(12, channels, *size, layout=layout, dtype=torch.float64)
    grad = torch.linspace(-1, 2, x.numel()).double().view(x.shape)  # contiguous, whatever x is
    host = _randomized(nn.BatchNorm3d(channels, **options))
    expected = _train(_Chunks(host, 4), x, grad)
    norm = _norm(channels, 4, **options)
    found = _train(_Stream(norm), x, grad)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)
    assert norm(x).is_contiguous(memory_format=layout)


# In the place of nn.BatchNorm3d.


def test_evaluation_ignores_the_group_size():
    x = _clips(5, 3, 2, 4, 4)  # 5 clips form no groups of 4
    ours, host = _norm(3, 4).eval(), nn.BatchNorm3d(3).eval()
    ours.running_mean.fill_(2.0)
    host.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x), host(x))
    assert ours.num_batches_tracked.item() == 0


def test_convert_keeps_parameters_names_and_attributes():
    """A module that is in two places stays one; converting twice changes nothing."""
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Sequential(nn.BatchNorm3d(4, eps=1e-3), nn.ReLU()))
    model.append(model[1][0])
    model[1][0].transform_final_bn = True
    model[1][0].eval()
    before = dict(model.state_dict(keep_vars=True))
    assert convert_batchnorm(model) is model
    norm = model[1][0]
    assert type(norm) is GroupedBatchNorm3d
    assert model[2] is norm
    assert convert_batchnorm(model)[1][0] is norm
    assert (norm.eps, norm.transform_final_bn, norm.training) == (1e-3, True, False)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_other_batch_normalisation_is_refused_by_name():
    model = nn.ModuleDict({"trunk": nn.BatchNorm3d(4), "head": nn.Sequential(nn.BatchNorm2d(4))})
    with pytest.raises(ValueError, match=r"contains head\.0 \(BatchNorm2d\)"):
        convert_batchnorm(model)
    assert type(model["trunk"]) is nn.BatchNorm3d, "nothing is half converted"


def test_statistics_that_are_not_to_be_tracked_are_not():
    norm = GroupedBatchNorm3d(2)
    set_group_size(norm, 2)
    norm.track_running_stats = False
    norm(torch.ones(4, 2, 1, 2, 2))
    assert norm.running_mean.tolist() == [0, 0]
    with pytest.raises(ValueError, match="group_size is 0, but must be at least 1"):
        set_group_size(norm, 0)


@pytest.mark.parametrize("group_size", [None, 2])
def test_a_group_size_without_layers_is_warned_of(group_size):
    model = nn.Linear(1, 1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        set_group_size(model, group_size)
    assert len(told) == (group_size is not None)
    set_group_size(GroupedBatchNorm3d(2), 1)
