"""Calling conventions of a later release's training script, on PySlowFast 1.0.

The names, arguments and results are those that such a script uses. The models and the data set are
1.0's, and an MViT of mvit.py. Its own multigrid code only raises an error.
"""

import argparse
import os
import sys
from importlib import import_module
from types import ModuleType

import torch
from fvcore.common.config import CfgNode
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

import slowfast.config.defaults as defaults
import slowfast.datasets.loader as loader
import slowfast.utils.checkpoint as checkpoint
import slowfast.utils.misc as misc
from slowfast import mvit
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
    cfg.SOLVER.COSINE_END_LR, cfg.SOLVER.LARS_ON = 0.0, False
    cfg.MIXUP, cfg.MASK = CfgNode({"ENABLE": False}), CfgNode({"ENABLE": False})
    cfg.TASK, cfg.DATA.LOADER_CHUNK_SIZE = "", 0
    cfg.MVIT = CfgNode(mvit.DEFAULTS)
    cfg.MODEL.SINGLE_PATHWAY_ARCH += ["mvit"]
    return cfg


def assert_and_infer_cfg(cfg):
    assert cfg.SHARD_ID < cfg.NUM_SHARDS
    return cfg


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method", default="tcp://localhost:9999")
    parser.add_argument("--cfg", dest="cfg_files", nargs="+")
    parser.add_argument("--opts", default=None, nargs=argparse.REMAINDER)
    return parser.parse_args()


def load_config(args, path_to_config=None):
    cfg = defaults.get_cfg()
    cfg.merge_from_file(path_to_config)
    cfg.merge_from_list(args.opts or [])
    checkpoint.make_checkpoint_dir(cfg.OUTPUT_DIR)
    return cfg


def run_rank(rank, func, cfg, init_method):
    dist.init_process_group("gloo", init_method, rank=rank, world_size=cfg.NUM_GPUS)
    torch.set_num_threads(1)
    func(cfg)


def launch_job(cfg, init_method, func):
    if dist.is_initialized():
        func(cfg)
    elif "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), func, cfg, "env://")
    elif cfg.NUM_GPUS > 1:
        init = f"file://{cfg.OUTPUT_DIR}/rendezvous"
        torch.multiprocessing.spawn(run_rank, (func, cfg, init), nprocs=cfg.NUM_GPUS)
    else:
        func(cfg)


class TensorboardWriter:
    def __init__(self, cfg):
        self.steps = []

    def add_scalars(self, data_dict, global_step=None):
        self.steps.append(global_step)


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
    build = mvit.MViT if cfg.MODEL.ARCH == "mvit" else model_builder._MODEL_TYPES[cfg.MODEL.ARCH]
    model = build(cfg)
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


def add_module(name, **functions):
    """Add a module of the later release that 1.0 does not have."""
    sys.modules[f"slowfast.{name}"] = module = ModuleType(f"slowfast.{name}")
    vars(module).update(functions)


add_module("utils.multigrid", MultigridSchedule=MultigridSchedule)
add_module("utils.parser", parse_args=parse_args, load_config=load_config)
add_module("models.build", build_model=build_model)
add_module("visualization")
add_module("visualization.tensorboard_vis", TensorboardWriter=TensorboardWriter)
models.build_model = build_model
defaults.get_cfg, defaults.assert_and_infer_cfg = get_cfg, assert_and_infer_cfg
loader.construct_loader, misc.launch_job = construct_loader, launch_job
optimizer.set_lr = set_lr
misc.aggregate_sub_bn_stats, misc.is_eval_epoch = aggregate_sub_bn_stats, is_eval_epoch
checkpoint.is_checkpoint_epoch = is_checkpoint_epoch
