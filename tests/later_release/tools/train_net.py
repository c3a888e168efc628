"""Training function that makes the same calls as a later release. It has no code for multigrid.

It writes a record of each training and evaluation step to OUTPUT_DIR, as JSON.
"""

import json
import random
from itertools import islice
from pathlib import Path

import numpy as np
import slowfast.models.optimizer as optim
import slowfast.utils.checkpoint as cu
import slowfast.visualization.tensorboard_vis as tb
import torch
from slowfast.datasets import loader
from slowfast.models import build_model
from slowfast.utils import logging, misc
from slowfast.utils.meters import TrainMeter
from slowfast.utils.multigrid import MultigridSchedule
from torch import distributed as dist
from torch import nn


def set_seeds(value):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(value)


def shape_of(inputs):
    return [len(inputs[-1]), *inputs[-1].shape[2:]]


def group_sizes(model):
    """Return the BN group sizes of all layers. 0 means all clips, and -1 nn.BatchNorm3d."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm3d)]
    return list({getattr(norm, "group_size", -1) or 0 for norm in norms})


def mix(inputs, labels):
    """Mix each clip with the clip at the other end of the mini-batch, and return both labels."""
    share = float(np.random.beta(1, 1))
    return [clips.lerp(clips.flip(0), share) for clips in inputs], labels.flip(0), share


def train_epoch(train_loader, model, optimizer, train_meter, cur_epoch, cfg, writer, seen):
    model.train()
    size = len(train_loader)
    for cur_iter, (inputs, labels, index, _time, _meta) in enumerate(train_loader):
        train_meter.iter_tic()
        lr = optim.get_epoch_lr(cur_epoch + float(cur_iter) / size, cfg)
        optim.set_lr(optimizer, lr)
        shape, mixed, share = shape_of(inputs), labels, 0.0
        if cfg.MIXUP.ENABLE:
            inputs, mixed, share = mix(inputs, labels)
        scores = model(inputs)
        losses = [nn.functional.cross_entropy(scores, target) for target in (labels, mixed)]
        loss = (1 - share) * losses[0] + share * losses[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_meter.iter_toc()
        train_meter.update_stats(0.0, 0.0, loss.item(), lr, len(labels))
        train_meter.log_iter_stats(cur_epoch, cur_iter)
        writer.add_scalars({"Train/loss": loss.item()}, global_step=size * cur_epoch + cur_iter)
        seen["train"].append(
            {
                "place": [cur_epoch, cur_iter, size],
                "shape": shape,
                "rates": [group["lr"] for group in optimizer.param_groups],
                "sizes": group_sizes(model),
                "videos": index.tolist(),
                "loss": loss.item(),
            }
        )
    train_meter.reset()


@torch.no_grad()
def forward(batches, model, what, seen):
    for inputs, *_ in islice(batches, 1):
        seen["eval"].append([what, shape_of(inputs), group_sizes(model)])
        model(inputs)


def train(cfg):
    set_seeds(cfg.RNG_SEED)
    logging.setup_logging()
    seen = {"train": [], "eval": [], "schedule": None}
    multigrid = None
    if cfg.MULTIGRID.LONG_CYCLE or cfg.MULTIGRID.SHORT_CYCLE:
        multigrid = MultigridSchedule()
        cfg = multigrid.init_multigrid(cfg)
        cfg, _ = multigrid.update_long_cycle(cfg, cur_epoch=0)
    model = build_model(cfg)
    optimizer = optim.construct_optimizer(model, cfg)
    optimizer.param_groups[0]["layer_decay"] = 0.5
    parallel, start_epoch = cfg.NUM_GPUS > 1, 0
    if cu.has_checkpoint(cfg.OUTPUT_DIR):
        last = cu.get_last_checkpoint(cfg.OUTPUT_DIR)
        start_epoch = cu.load_checkpoint(last, model, parallel, optimizer) + 1
    train_loader = loader.construct_loader(cfg, "train")
    val_loader = loader.construct_loader(cfg, "val")
    precise_bn_loader = loader.construct_loader(cfg, "train", is_precise_bn=True)
    train_meter = TrainMeter(len(train_loader), cfg)
    writer = tb.TensorboardWriter(cfg)
    for cur_epoch in range(start_epoch, cfg.SOLVER.MAX_EPOCH):
        if multigrid:
            cfg, changed = multigrid.update_long_cycle(cfg, cur_epoch)
            assert not changed
        loader.shuffle_dataset(train_loader, cur_epoch)
        train_epoch(train_loader, model, optimizer, train_meter, cur_epoch, cfg, writer, seen)
        schedule = None if multigrid is None else multigrid.schedule
        if misc.is_eval_epoch(cfg, cur_epoch, schedule) and cfg.BN.USE_PRECISE_STATS:
            forward(precise_bn_loader, model, "precise BN", seen)
        misc.aggregate_sub_bn_stats(model)
        if cu.is_checkpoint_epoch(cfg, cur_epoch, schedule):
            cu.save_checkpoint(cfg.OUTPUT_DIR, model, optimizer, cur_epoch, cfg)
        if misc.is_eval_epoch(cfg, cur_epoch, schedule):
            forward(val_loader, model.eval(), "val", seen)
    seen["schedule"] = multigrid and multigrid.schedule
    seen["steps"] = writer.steps
    rank = dist.get_rank() if dist.is_initialized() else 0
    Path(cfg.OUTPUT_DIR, f"{rank}.json").write_text(json.dumps(seen))
