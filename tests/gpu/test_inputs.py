"""Clips on their way to a GPU: right, beside the step before, in bounded memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slowfast_patches.models.inputs import InputTransform, side_stream

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def transform(
    device: torch.device,
    alpha: int | None = 4,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    reverse: bool = False,
) -> InputTransform:
    mean = torch.tensor([0.45, 0.1, 0.6], device=device)
    std = torch.tensor([0.225, 0.3, 0.2], device=device)
    return InputTransform(mean, std, alpha, reverse, device, dtype, channels_last)


def made_up(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    clips = torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8)
    return clips, torch.rand(shape[0], generator=generator) < 0.5


def pinned(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """A copy of its own, as a loader makes it of each mini-batch."""
    return tuple(tensor.pin_memory() for tensor in batch)


class Work:
    """A step of training, as far as time goes: some products of matrices, queued when called."""

    def __init__(self, products: int) -> None:
        self._matrix, self._products = torch.rand(4096, 4096, device=GPU), products
        self._product = torch.empty_like(self._matrix)

    def __call__(self) -> torch.cuda.Event:
        """The end of it."""
        for _ in range(self._products):
            torch.mm(self._matrix, self._matrix, out=self._product)
        end = torch.cuda.Event()
        end.record()
        return end


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [None, 4, 8])
def test_the_gpus_pathways_are_the_cpus_to_the_last_bit(
    alpha, dtype, channels_last, reverse, caplog
):
    if dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        dtype = torch.float16
    options = (alpha, dtype, channels_last, reverse)
    ours, wanted = transform(GPU, *options), transform(CPU, *options)
    for number, shape in enumerate([(3, 8, 15, 17), (1, 16, 158, 158), (2, 8, 1, 1)]):
        batch = made_up(number, *shape)
        for given in (batch, pinned(batch)):
            for made, path in zip(ours(*given), wanted(*batch), strict=True):
                assert made.stride() == path.stride()
                assert torch.equal(made.cpu(), path)
    assert caplog.messages == [], "the kernel was not used"


def test_many_batches_in_a_row_are_right_each():
    """Memory that was given away too early, on either side, would hold another's values."""
    to_gpu, work, on_cpu = transform(GPU), Work(1), transform(CPU)
    batches = [made_up(n, 8, 8, 64 + n, 64 + n) for n in range(4)]
    wanted = [[path.to(GPU) for path in on_cpu(*batch)] for batch in batches]
    wrong = torch.zeros((), dtype=torch.int64, device=GPU)
    for number in range(200):
        which = number % len(batches)
        paths = to_gpu(*pinned(batches[which]))
        work()  # the values are looked at long after the host has gone on
        for made, path in zip(paths, wanted[which], strict=True):
            wrong += (made != path).sum()
        del paths, made
    assert int(wrong) == 0


def test_a_batch_is_ready_before_the_step_before_is_done():
    to_gpu, work = transform(GPU), Work(60)
    for _ in range(2):
        to_gpu(*pinned(made_up(0, 8, 8, 112, 112)))
    torch.cuda.synchronize()
    batch = pinned(made_up(1, 8, 8, 112, 112))
    busy = work()
    to_gpu(*batch)
    ready = side_stream(GPU)._stream.record_event()
    ready.synchronize()
    assert not busy.query(), "it waited for the step before"
    busy.synchronize()


def test_two_batches_at_most_are_on_the_gpu():
    to_gpu, work, batch = transform(GPU), Work(8), pinned(made_up(0, 32, 8, 112, 112))
    to_gpu(*batch)
    ends = [work()]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    for number in range(30):
        paths = to_gpu(*batch)
        assert all(end.query() for end in ends[:-1]), "more than one step is queued"
        ends.append(work())
        del paths
        if number == 9:
            reserved = torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() == reserved
    # Of a pixel's channel: 1 byte as it comes, 4 in the fast pathway, 1 in the slow one. Blocks of
    # memory are up to a megabyte larger than what is in them.
    most = 2 * 6 * batch[0].numel() + 8 * 2**20
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before <= most
