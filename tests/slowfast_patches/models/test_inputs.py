"""Clips of uint8 become pathways, packed and normalised as in PySlowFast."""

import operator

import numpy as np
import pytest
import torch
from slowfast.datasets.utils import pack_pathway_output

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe, pyslowfast_config
from slowfast_patches.models import inputs
from slowfast_patches.models.inputs import (
    InputTransform,
    blank_inputs,
    pack,
    pack_pathways,
    send_together,
    unpack,
)

CPU = torch.device("cpu")


def config(*overrides: object) -> Recipe:
    means = ["DATA.MEAN", [0.25, 0.5, 0.75], "DATA.STD", [0.5, 0.25, 0.125]]
    return load_recipe(None, ["NUM_GPUS", 0, *means, *overrides])


def transform(*overrides: object) -> InputTransform:
    return InputTransform.of_recipe(config(*overrides), CPU)


def random_clips() -> torch.Tensor:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 6, 3), np.uint8)
    return torch.from_numpy(pixels)


NO_FLIPS = torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize(("frames", "alpha"), [(32, 8), (10, 3), (5, 1)])
def test_pathways_are_the_hosts(frames, alpha):
    clips = torch.arange(2.0 * 3 * frames).view(2, 3, frames, 1, 1)
    ours = pack_pathways(clips, alpha)
    cfg = config("MODEL.ARCH", "slowfast", "SLOWFAST.ALPHA", alpha)
    for number, clip in enumerate(clips):
        for path, expected in zip(
            ours, pack_pathway_output(pyslowfast_config(cfg), clip), strict=True
        ):
            assert torch.equal(path[number], expected)


def test_pixels_are_normalised_by_channel_as_floats():
    # 255, 0 and 51 are 1, 0 and 0.2; means 1/4, 1/2, 3/4; deviations 1/2, 1/4, 1/8.
    wanted = {255: [1.5, 2.0, 2.0], 0: [-0.5, -2.0, -6.0], 51: [-0.1, -1.2, -4.4]}
    for value, by_channel in wanted.items():
        clips = torch.full((1, 1, 1, 1, 3), value, dtype=torch.uint8)
        (ours,) = transform("MODEL.ARCH", "i3d")(clips, NO_FLIPS[:1])
        assert ours.flatten().tolist() == pytest.approx(by_channel, abs=1e-6)
        reverse = transform("MODEL.ARCH", "i3d", "DATA.REVERSE_INPUT_CHANNEL", True)
        assert reverse(clips, NO_FLIPS[:1])[0].flatten().tolist() == ours.flatten().tolist()[::-1]


def test_only_flagged_clips_are_mirrored_and_only_from_left_to_right():
    clips, to_model = random_clips(), transform("MODEL.ARCH", "i3d")
    (plain,) = to_model(clips, NO_FLIPS)
    (mirrored,) = to_model(clips, torch.tensor([True, False, True]))
    assert torch.equal(mirrored[1], plain[1])
    for number in (0, 2):
        for column in range(6):
            assert torch.equal(mirrored[number, ..., column], plain[number, ..., 5 - column])


def test_a_cpu_converts_clip_by_clip_and_mirrors_only_what_is_flagged(monkeypatch):
    """Each clip then stays in the cache, and `torch.where` is not called needlessly."""
    converted, mirrored = [], []
    convert, where = InputTransform._convert, torch.where

    def counted(self, clips, flips, out):
        converted.append(len(clips))
        convert(self, clips, flips, out)

    monkeypatch.setattr(InputTransform, "_convert", counted)
    monkeypatch.setattr(torch, "where", lambda *args: mirrored.append(True) or where(*args))
    transform("MODEL.ARCH", "i3d")(random_clips(), torch.tensor([False, True, False]))
    assert converted == [1, 1, 1]
    assert mirrored == [True]


# Layout and type.


def test_channels_last_are_the_same_values_with_a_pixels_channels_side_by_side():
    arch = ["MODEL.ARCH", "slowfast"]
    clips, flips = random_clips(), torch.tensor([True, False, True])
    before = clips.clone()
    plain = transform(*arch)(clips, flips)
    assert torch.equal(clips, before)
    last = transform(*arch, "MODEL.CHANNELS_LAST", True)(clips, flips)
    for ours, wanted in zip(last, plain, strict=True):
        assert ours.is_contiguous(memory_format=torch.channels_last_3d)
        assert ours.stride(1) == 1
        assert torch.equal(ours, wanted)


def test_mixed_precision_rounds_the_normalised_pixel_once():
    """Only the result is rounded to bfloat16, as worked out by hand.

    A pixel of 1 becomes (1/255 - 1/4) · 2 = -0.4921569, which rounds to -0.4921875. A pixel of 130
    becomes (0.5098039 - 1/4) · 2 = 0.5196078, which rounds to 0.5195312. Rounding 0.5098039 first,
    to 0.5117188, would give 0.5234375 instead.
    """
    clips = torch.tensor([1, 0, 0, 130, 0, 0], dtype=torch.uint8).view(1, 1, 1, 2, 3)
    mixed = transform("MODEL.ARCH", "i3d", "TRAIN.MIXED_PRECISION", True)
    (ours,) = mixed(clips, NO_FLIPS[:1])
    assert ours.dtype == torch.bfloat16
    assert ours[0, 0].flatten().tolist() == [-0.4921875, 0.51953125]


def test_small_tensors_of_several_types_come_out_of_a_pack_as_they_went_in():
    tensors = [
        torch.tensor([True, False, True]),
        torch.tensor([2**40, -1]),
        torch.tensor(0.5),
        torch.rand(4, 3)[:, ::2],
        torch.zeros(0, 2),
    ]
    for found, expected in zip(unpack(pack(tensors), tensors), tensors, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("keys", [(), ("DATA.REVERSE_INPUT_CHANNEL", True)])
def test_pixels_on_the_device_become_the_same_pathways(keys):
    to_model = transform("MODEL.ARCH", "slowfast", "TRAIN.MIXED_PRECISION", True, *keys)
    clips = random_clips()
    channels_first = clips.permute(0, 4, 1, 2, 3)
    found = to_model.of_pixels(channels_first)
    for ours, wanted in zip(found, to_model(clips, NO_FLIPS), strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, wanted)
    assert torch.equal(clips, random_clips()), "the clips were changed"


def test_blank_clips_have_the_shape_of_a_mini_batch_and_take_no_memory(monkeypatch):
    monkeypatch.setattr(inputs, "pack_pathways", lambda clips, alpha: [clips, alpha])
    clips, alpha = blank_inputs((2, 8, 16), 4)
    assert (tuple(clips.shape), clips.device.type) == ((2, 3, 8, 16, 16), "meta")
    assert alpha == 4


# Small tensors.


def test_a_pack_takes_the_bytes_of_its_tensors_rounded_up_to_16():
    """The sizes are 3, 0 and 24 bytes."""
    tensors = [torch.ones(3, dtype=torch.bool), torch.zeros(0), torch.arange(3)]
    packed = pack(tensors)
    assert (packed.dtype, packed.shape) == (torch.uint8, (16 + 32,))
    assert packed[16:40].view(torch.int64).tolist() == [0, 1, 2]


def test_small_tensors_are_sent_in_one_copy_and_others_stay_where_they_are(monkeypatch):
    packs = []
    monkeypatch.setattr(inputs, "pack", lambda *args, **how: packs.append(how) or pack(*args))
    there = torch.zeros(5, device="meta")
    here = [torch.zeros(2, 3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)]
    first, same, last = send_together([here[0], there, here[1]], torch.device("meta"))
    assert same is there
    for found, sent in zip((first, last), here, strict=True):
        assert (found.shape, found.dtype, found.is_meta) == (sent.shape, sent.dtype, True)
    assert packs == [{"pin_memory": False}]
    assert send_together([there], torch.device("meta"))[0] is there
    assert all(map(operator.is_, send_together(here, CPU), here))
    assert len(packs) == 1
