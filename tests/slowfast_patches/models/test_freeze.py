"""The parameters that TRAIN.FREEZE names, and frozen layers in training."""

import copy

import pytest
import torch
from torch import nn

from multigrid.micro_batches import divide
from slowfast_patches.config import load_recipe
from slowfast_patches.models.freeze import freeze, frozen_names
from slowfast_patches.models.solver import build_optimizer
from slowfast_patches.models.weights import load_weights


class Net(nn.Module):
    """Network of two stages and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.s1 = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.Dropout(0.9))
        self.s2 = nn.Sequential(nn.Conv3d(4, 4, 1), nn.BatchNorm3d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.s2(self.s1(x)).mean((2, 3, 4)))


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["backbone"], {"head.weight", "head.bias"}),
        (["s1", "s2.0"], {"s2.1.weight", "s2.1.bias", "head.weight", "head.bias"}),
        (["s?", "head.b*"], {"head.weight"}),
    ],
)
def test_parts_are_named_by_modules_parameters_and_patterns(patterns, left):
    net = Net()
    assert {*dict(net.named_parameters())} - {*frozen_names(net, patterns)} == left


def test_a_frozen_stage_keeps_its_numbers_and_another_learns():
    net, x = Net(), torch.randn(6, 3, 2, 4, 4)
    freeze(net, ["s1"])
    before = {name: value.clone() for name, value in net.state_dict().items()}
    recipe = load_recipe(None, ["SOLVER.WEIGHT_DECAY", 0.1, "TRAIN.FREEZE", "s1"])
    optimizer = build_optimizer(recipe, net)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 6
    for model in (copy.deepcopy(net), net):  # a copy, as averaged weights are, is frozen too
        model.train()
        modules = (model, model.s1, model.s1[2], model.s2[1])
        assert [module.training for module in modules] == [True, False, False, True]
    for micro in divide({"clips": x}, 6, None, 3, net.modules()):
        net(micro.batch["clips"]).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    assert changed == {name for name in before if not name.startswith("s1.")}


def test_a_frozen_part_has_to_be_in_the_file_of_weights(tmp_path):
    path = tmp_path / "one_stage.pyth"
    torch.save({k: v for k, v in Net().state_dict().items() if "s2" not in k}, path)
    net = Net()
    freeze(net, ["s1"])
    load_weights(net, path)
    net = Net()
    freeze(net, ["backbone"])
    with pytest.raises(ValueError, match=r"FREEZE freezes: s2.0.bias and 3 more would"):
        load_weights(net, path)


def test_what_freezes_nothing_or_all_is_refused():
    with pytest.raises(ValueError, match=r"FREEZE s3 matches no parameter.*as s1, s2 and head"):
        frozen_names(Net(), ["s1", "s3"])
    with pytest.raises(ValueError, match=r"TRAIN.FREEZE \* freezes the whole head"):
        frozen_names(Net(), ["*"])
