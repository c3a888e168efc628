"""Stand-in for a later release: calling conventions of its training script, on PySlowFast 1.0.

It has the names, arguments and results that such a script uses, with 1.0's models and data set. Its
own multigrid code only raises an error.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import torch
from fvcore.common.config import CfgNode
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

_HERE = str(Path(__file__).parents[1])
_found = PathFinder.find_spec("slowfast", [path for path in sys.path if path != _HERE])
__path__ = list(_found.submodule_search_locations)

from slowfast_patches import patching

patching.apply()

import slowfast.models
from slowfast.config import defaults
from slowfast.datasets import kinetics, loader  # noqa: F401
from slowfast.models import model_builder, optimizer, video_model_builder
from slowfast.utils import checkpoint, misc

video_model_builder._MODEL_STAGE_DEPTH[50] = (1, 1, 1, 1)
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
    if cfg.NUM_GPUS > 1:
        return DistributedDataParallel(model, broadcast_buffers=False)
    return model


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
sys.modules["slowfast.models.build"].build_model = slowfast.models.build_model = build_model
defaults.get_cfg, loader.construct_loader = get_cfg, construct_loader
optimizer.set_lr = set_lr
misc.aggregate_sub_bn_stats, misc.is_eval_epoch = aggregate_sub_bn_stats, is_eval_epoch
checkpoint.is_checkpoint_epoch = is_checkpoint_epoch
