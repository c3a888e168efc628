"""Precise statistics are computed over all clips, on one process and on several."""

from __future__ import annotations

import torch
from fvcore.nn import update_bn_stats
from torch import Tensor, nn

from multigrid import GroupedBatchNorm3d, convert_batchnorm, set_group_size
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.layers.dropout import ClipDropout, seed_dropout
from slowfast_patches.train.evaluate import update_precise_bn
from tests.slowfast_patches.train.conftest import ALONE

RECIPE = default_recipe().replaced({"MODEL.ARCH": "slowonly", "NUM_GPUS": 0})


class Net(nn.Sequential):
    """Layers that take the first pathway."""

    def forward(self, pathways: list[Tensor]) -> Tensor:
        return super().forward(pathways[0])


def batches(count: int, clips: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = torch.randint(0, 256, (count, clips, 2, 4, 4, 3), generator=generator).byte()
    return [{"clips": clip, "flips": torch.zeros(clips, dtype=torch.bool)} for clip in made]


def test_on_one_process_it_is_fvcores_whatever_the_groups_were():
    def build() -> nn.Module:
        torch.manual_seed(0)
        layers = (nn.Conv3d(3, 8, 1), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 4, 1))
        return Net(*layers, nn.BatchNorm3d(4))

    ours, theirs, loader = build(), build(), batches(3, 4)
    set_group_size(convert_batchnorm(ours), 2)
    update_precise_bn(ours, loader, RECIPE, ALONE, 4)
    transform = InputTransform.of_recipe(RECIPE, ALONE.device)
    inputs = [transform(batch["clips"], batch["flips"]) for batch in loader]
    update_bn_stats(theirs.train(), inputs, len(inputs))
    torch.testing.assert_close(
        dict(ours.state_dict()), dict(theirs.state_dict()), rtol=1e-4, atol=1e-5
    )


def test_clips_of_the_training_are_forgotten():
    """Dropout must not use the masks of training clips for the clips of precise BN."""
    model = Net(GroupedBatchNorm3d(3), ClipDropout(0.5, 0, 3))
    seed_dropout(model, [1, 2])
    update_precise_bn(model, batches(1, 4), RECIPE, ALONE, 4)
    assert not model[1].step_values.masks
