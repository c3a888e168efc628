"""Parts of TSM by hand: the shift, the shifting convolution, names of files, and the keys."""

import pytest
import torch
from torch import nn

from slowfast_patches.config import load_recipe
from slowfast_patches.extras.tsm.keys import TsmKeys
from slowfast_patches.extras.tsm.tsm_model import ShiftedConv3d, check_frames, temporal_shift
from slowfast_patches.extras.tsm.tsm_weights import shift_problems, torchvision_names
from slowfast_patches.utils.errors import UserError


def test_the_first_channel_comes_from_the_next_frame_and_the_second_from_the_one_before():
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]).view(1, 3, 3, 1, 1)
    expected = [[2.0, 3, 0], [0, 4, 5], [7, 8, 9]]
    assert temporal_shift(x, 1)[0, :, :, 0, 0].tolist() == expected


def test_none_or_all_of_the_channels_may_shift_but_no_more():
    x = torch.arange(1.0, 7).view(1, 2, 3, 1, 1)
    assert torch.equal(temporal_shift(x, 0), x)
    assert temporal_shift(x, 1).flatten().tolist() == [2, 3, 0, 0, 4, 5]
    for channels in (-1, 2):
        with pytest.raises(AssertionError):
            temporal_shift(x, channels)


def test_the_convolution_shifts_a_share_of_its_input_and_has_the_parameters_of_the_old_one():
    """Of nine channels, a fourth shifts each way: two. The kernel adds all channels."""
    plain = nn.Conv3d(9, 1, 1, bias=False)
    shifted = ShiftedConv3d(plain, 4)
    assert shifted.weight is plain.weight
    nn.init.ones_(plain.weight)
    x = torch.zeros(1, 9, 3, 1, 1)
    x[0, :, 1] = torch.tensor([1.0, 2, 4, 8, 16, 32, 64, 128, 256])[:, None, None]
    with torch.no_grad():
        assert shifted(x).flatten().tolist() == [1 + 2, 16 + 32 + 64 + 128 + 256, 4 + 8]


@pytest.mark.parametrize(
    ("frames", "share", "is_refused"), [(1, 8, True), (2, 8, False), (1, 0, False)]
)
def test_a_clip_needs_two_frames_if_channels_shift(frames, share, is_refused):
    recipe = load_recipe(None, ["MODEL.ARCH", "tsm"])
    recipe = recipe.replaced({"DATA.NUM_FRAMES": frames, "TSM.SHIFT_DIV": share})
    if not is_refused:
        check_frames(recipe)
        return
    with pytest.raises(UserError, match=rf"NUM_FRAMES is {frames}, but a shape of the schedule"):
        check_frames(recipe)


def named(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(2, 2, 1, 1) for name in names}


def test_names_become_those_of_torchvision_and_kernels_get_an_axis_for_time():
    stem = torch.rand(2, 3, 7, 7)
    tensors = {
        "base_model.conv1.weight": stem,
        "base_model.bn1.weight": torch.rand(2),
        "base_model.layer1.0.conv1.net.weight": torch.rand(2, 2, 1, 1),
        "base_model.layer1.0.conv2.weight": torch.rand(2, 2, 3, 3),
        "new_fc.weight": torch.rand(5, 2),
        "base_model.fc.bias": torch.rand(5),
    }
    found = torchvision_names(tensors)
    assert {name: value.ndim for name, value in found.items()} == {
        "conv1.weight": 5,
        "bn1.weight": 1,
        "layer1.0.conv1.weight": 5,
        "layer1.0.conv2.weight": 5,
        "head.projection.weight": 2,
        "head.projection.bias": 1,
    }
    assert found["conv1.weight"].shape == (2, 3, 1, 7, 7)
    assert torch.equal(found["conv1.weight"][:, :, 0], stem)


def test_other_files_keep_their_names():
    tensors = named("conv1.weight", "fc.weight")
    assert torchvision_names(tensors) is tensors


def network(*shifting: str) -> nn.Module:
    """A network whose blocks of these names shift."""
    model = nn.Module()
    for name in shifting:
        parent = model
        for part in name.split(".")[:-1]:
            parent.add_module(part, getattr(parent, part, nn.Module()))
            parent = getattr(parent, part)
        parent.add_module(name.split(".")[-1], ShiftedConv3d(nn.Conv3d(2, 2, 1), 2))
    return model


def test_a_file_that_shifts_elsewhere_is_a_problem():
    first, second = (f"s{n}.pathway0_res0.branch2.a" for n in (2, 3))
    file = named("base_model.conv1.weight", "base_model.layer1.0.conv1.net.weight")
    assert shift_problems(file, network(first)) == {}
    assert shift_problems({f"module.{k}": v for k, v in file.items()}, network(first)) == {}
    for names, count in (((second,), 1), ((first, second), 2), ((), 0)):
        problem = {"Temporal shift": f"in 1 blocks, not in {count} blocks"}
        assert shift_problems(file, network(*names)) == problem
    assert shift_problems(named("conv1.weight"), network(first)) == {}


@pytest.mark.parametrize("share", [-1, 1])
def test_a_share_that_is_no_share_is_refused(share):
    with pytest.raises(ValueError, match="2 or more, or 0 for no shift"):
        load_recipe(None, ["TSM.SHIFT_DIV", share])
    for right in (0, 2):
        assert TsmKeys.of(load_recipe(None, ["TSM.SHIFT_DIV", right])).shift_div == right
