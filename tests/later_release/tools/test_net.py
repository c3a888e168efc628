"""Test function that makes the same calls as a later release. It writes test.json."""

import json
from pathlib import Path

import torch
from slowfast.datasets import loader
from slowfast.models import build_model


@torch.no_grad()
def test(cfg):
    model = build_model(cfg).eval()
    inputs, *_ = next(iter(loader.construct_loader(cfg, "test")))
    shape = [len(inputs[-1]), *inputs[-1].shape[2:]]
    model(inputs)
    Path(cfg.OUTPUT_DIR, "test.json").write_text(json.dumps(shape))
