"""Train with multigrid in the loop of PySlowFast 1.0, on a CPU.

python examples/pyslowfast_demo.py DATA [KEY VALUE ...]     # or torchrun --nproc_per_node 2 ...
"""

import sys
from pathlib import Path

import torch
from slowfast.config.defaults import get_cfg
from slowfast.datasets.kinetics import Kinetics
from slowfast.models.losses import get_loss_func
from slowfast.models.optimizer import construct_optimizer
from slowfast.utils import logging, meters, misc
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import multigrid as mg
from multigrid.integrations.pyslowfast import PySlowFastMultigrid, add_multigrid_config
from slowfast_patches import patching

RECIPE = Path(__file__).with_suffix(".yaml")


def errors(scores: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Return top-1 and top-5 errors in %.

    The function in slowfast.utils.metrics cannot be used, because it calls `view` on a tensor that
    is not contiguous.
    """
    right = scores.topk(5).indices == labels[:, None]
    return [100 - 100 * right[:, :k].any(1).float().mean().item() for k in (1, 5)]


def main() -> None:
    cfg = get_cfg()
    add_multigrid_config(cfg)
    cfg.merge_from_file(str(RECIPE))
    data = ["DATA.PATH_TO_DATA_DIR", sys.argv[1], "DATA.PATH_PREFIX", sys.argv[1]]
    cfg.merge_from_list(data + sys.argv[2:])
    if distributed := torch.distributed.is_torchelastic_launched():
        torch.distributed.init_process_group("gloo")
    logging.setup_logging()
    patching.apply()  # Replace the detectron2 layer that slowfast.models imports.
    from slowfast.models.model_builder import _MODEL_TYPES  # slowfast's build_model needs a GPU.

    torch.manual_seed(cfg.RNG_SEED)
    train, val = Kinetics(cfg, "train"), Kinetics(cfg, "val")
    multigrid = PySlowFastMultigrid(cfg, num_videos=len(train))
    model = multigrid.convert(_MODEL_TYPES[cfg.MODEL.ARCH](cfg))
    network = DistributedDataParallel(model, broadcast_buffers=False) if distributed else model
    optimizer = construct_optimizer(model, cfg)
    loss_fun = get_loss_func(cfg.MODEL.LOSS_FUNC)()
    train_meter = meters.TrainMeter(multigrid.longest_epoch, cfg)
    for epoch, batches in multigrid.epochs(multigrid.loader(train)):
        network.train()
        for number, (inputs, labels, _, _) in enumerate(batches):
            train_meter.iter_tic()
            step = multigrid.begin(optimizer)
            scores = network(inputs)
            loss = loss_fun(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_meter.iter_toc()
            train_meter.update_stats(*errors(scores, labels), loss.item(), step.lr, len(labels))
            train_meter.log_iter_stats(epoch, number)
        train_meter.reset()
        if misc.is_eval_epoch(cfg, epoch):
            mg.average_running_stats(model.eval())
            val_meter = meters.ValMeter(len(val), cfg)
            with torch.no_grad():
                for inputs, labels, _, _ in DataLoader(val, cfg.TRAIN.BATCH_SIZE):
                    val_meter.update_stats(*errors(model(inputs), labels), len(labels))
            val_meter.log_epoch_stats(epoch)


if __name__ == "__main__":
    main()
