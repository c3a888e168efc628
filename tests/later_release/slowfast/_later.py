"""Calling conventions of a later release's training script, on PySlowFast 1.0.

The names, arguments and results are those that such a script uses. The models and the data set are
1.0's. Its own multigrid code only raises an error.
"""

import sys
from importlib import import_module
from types import ModuleType

import torch
from fvcore.common.config import CfgNode
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

import slowfast.config.defaults as defaults
import slowfast.datasets.loader as loader
import slowfast.utils.checkpoint as checkpoint
import slowfast.utils.misc as misc
from slowfast_patches import patching

patching.apply()
models = import_module("slowfast.models")
model_builder = import_module("slowfast.models.model_builder")
optimizer = import_module("slowfast.models.optimizer")
import_module("slowfast.models.video_model_builder")._MODEL_STAGE_DEPTH[50] = (1, 1, 1, 1)
_get_cfg, _construct_loader = defaults.get_cfg, loader.construct_loader


def get_cfg():
    cfg = _get_cfg()
    cfg.MULTIGRID = CfgNode(
        {
            "LONG_CYCLE": False,
            "SHORT_CYCLE": False,
            "EPOCH_FACTOR": 1.5,
            "BN_BASE_SIZE": 8,
            "DEFAULT_B": 0,
            "DEFAULT_T": 0,
            "DEFAULT_S": 0,
        }
    )
    cfg.BN.NORM_TYPE, cfg.BN.NUM_SPLITS = "batchnorm", 1
    cfg.SOLVER.COSINE_END_LR = 0.0
    return cfg


class MultigridSchedule:
    def init_multigrid(self, cfg):
        raise AssertionError("the multigrid code of the later release runs")


def collate_with_time(items):
    inputs, labels, index, meta = default_collate(items)
    return inputs, labels, index, torch.zeros(len(labels)), meta


def construct_loader(cfg, split, is_precise_bn=False):
    cycles = cfg.MULTIGRID.LONG_CYCLE or cfg.MULTIGRID.SHORT_CYCLE
    assert not cycles, "the multigrid code of the later release runs"
    made = _construct_loader(cfg, split)
    made.collate_fn = collate_with_time
    return made


def build_model(cfg, gpu_id=None):
    assert cfg.BN.NORM_TYPE == "batchnorm", "the state dict of another BN would differ"
    model = model_builder._MODEL_TYPES[cfg.MODEL.ARCH](cfg)
    return DistributedDataParallel(model) if cfg.NUM_GPUS > 1 else model


def set_lr(optimizer, new_lr):
    for group in optimizer.param_groups:
        group["lr"] = new_lr * group.get("layer_decay", 1.0)


def aggregate_sub_bn_stats(module):
    return 0


def is_eval_epoch(cfg, cur_epoch, multigrid_schedule):
    if multigrid_schedule is not None:
        return cur_epoch + 1 in {end for *_, end in multigrid_schedule}
    return cur_epoch + 1 == cfg.SOLVER.MAX_EPOCH


def is_checkpoint_epoch(cfg, cur_epoch, multigrid_schedule=None):
    return True


sys.modules["slowfast.utils.multigrid"] = ModuleType("slowfast.utils.multigrid")
sys.modules["slowfast.models.build"] = ModuleType("slowfast.models.build")
sys.modules["slowfast.utils.multigrid"].MultigridSchedule = MultigridSchedule
sys.modules["slowfast.models.build"].build_model = models.build_model = build_model
defaults.get_cfg, loader.construct_loader = get_cfg, construct_loader
optimizer.set_lr = set_lr
misc.aggregate_sub_bn_stats, misc.is_eval_epoch = aggregate_sub_bn_stats, is_eval_epoch
checkpoint.is_checkpoint_epoch = is_checkpoint_epoch
