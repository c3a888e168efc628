"""A config, a data set and a network of PySlowFast's kind, for tests of the integration."""

from __future__ import annotations

import random

import numpy as np
import torch
from fvcore.common.config import CfgNode
from slowfast.config.defaults import get_cfg
from torch import nn
from torch.utils.data import Dataset

from multigrid.integrations.pyslowfast import add_multigrid_config

VIDEOS = 24
RECIPE = """
MULTIGRID: {LONG_CYCLE: True, SHORT_CYCLE: True, BN_BASE_SIZE: 4, EPOCH_FACTOR: 2.0}
TRAIN: {BATCH_SIZE: 4}
DATA: {NUM_FRAMES: 8, SAMPLING_RATE: 2, TRAIN_JITTER_SCALES: [36, 40], TRAIN_CROP_SIZE: 32}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 4, 6],
         LRS: [1, 0.1, 0.01, 0.001], MAX_EPOCH: 6, WARMUP_EPOCHS: 0.5, WARMUP_START_LR: 0.02}
DATA_LOADER: {NUM_WORKERS: 0, PIN_MEMORY: False}
RNG_SEED: 3
"""


def new_config(*pairs: object) -> CfgNode:
    cfg = get_cfg()
    cfg.SOLVER.WARMUP_EPOCHS = 0.0  # an integer in PySlowFast 1.0
    cfg.BN.NORM_TYPE = "batchnorm"  # as in a later release
    add_multigrid_config(cfg)
    cfg.merge_from_other_cfg(CfgNode(CfgNode.load_cfg(RECIPE)))
    cfg.merge_from_list(list(pairs))
    return cfg


class Asked(Dataset):
    """Data set whose items contain values of its config and draws from the global generators."""

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg

    def __len__(self) -> int:
        return VIDEOS

    def __getitem__(self, index: int):
        data = self.cfg.DATA
        clip = torch.full((3, data.NUM_FRAMES, data.TRAIN_CROP_SIZE, data.TRAIN_CROP_SIZE), 1.0)
        draws = [random.random(), float(np.random.rand()), float(torch.rand(1))]
        asked = [data.SAMPLING_RATE, *data.TRAIN_JITTER_SCALES, self.cfg.MULTIGRID.SHORT_CYCLE]
        return [clip[:, ::2], clip], index % 2, index, {"asked": asked, "draws": draws}


class Net(nn.Module):
    """Network that pools a window of the size of the baseline's feature map, as PySlowFast 1.0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv3d(3, 4, 3, (1, 4, 4), 1), nn.BatchNorm3d(4)
        self.small = nn.AvgPool3d((1, 1, 1), stride=1)
        self.pool = nn.AvgPool3d((8, 8, 8), stride=1)
        self.projection = nn.Linear(4, 2)

    def forward(self, pathways):
        maps = self.small(self.bn(self.conv(pathways[-1])).relu())
        scores = self.projection(self.pool(maps).permute(0, 2, 3, 4, 1))
        return scores.flatten(1) if self.training else scores.softmax(4).mean((1, 2, 3))
