"""The classes of a video, from a trained model: read, scored and averaged as its recipe tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from multigrid import empty_clips
from slowfast_patches import patching
from slowfast_patches.config import check_config, load_config, parse_config
from slowfast_patches.datasets.clips import evaluation_plan, reading_options
from slowfast_patches.datasets.loader import dataset_class
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train import checkpoints

__all__ = ["Predictor", "read_checkpoint"]


def read_checkpoint(
    path: Path, recipe: Path | None = None, overrides: Sequence[object] = ()
) -> tuple[CfgNode, tuple[str, ...] | None]:
    """The config to predict with, a recipe or the one that the checkpoint was trained with, and the
    names of the classes; None where it has none, as weights alone, files of others, and checkpoints
    from before names were kept.

    Raises:
        ValueError: the checkpoint cannot be read, it has no config and no recipe is given, or the
            config is none that can be tested.
    """
    try:
        content = checkpoints.load(path)
    except ValueError:
        if recipe is None:
            raise
        content = {}  # of another kind: what reads the weights says what is wrong
    if recipe is not None:
        cfg = load_config(recipe, overrides)
    else:
        text = content.get("cfg")
        if not isinstance(text, str):
            raise ValueError(f"{path} has weights and no config; give their recipe: --cfg FILE")
        source = f"the config in {path}"
        try:
            parse_config(text, source)
        except ValueError as error:
            raise ValueError(f"{error}; or give the recipe: --cfg FILE") from error
        cfg = parse_config(text, source, overrides)
    check_config(cfg)
    names = content.get("class_names")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return cfg, None
    return cfg, tuple(names) if len(names) == cfg.MODEL.NUM_CLASSES else None


class Predictor:
    """A trained model that scores videos, on a GPU if the recipe uses one and there is one."""

    def __init__(self, cfg: CfgNode, path: Path) -> None:
        """Load the weights of a checkpoint.

        Raises:
            ValueError: they are not those of the model that `cfg` describes.
        """
        patching.apply()
        self._cfg = cfg
        on_gpu = cfg.NUM_GPUS > 0 and torch.cuda.is_available()
        device = torch.device("cuda" if on_gpu else "cpu")
        self._model: nn.Module = build_model(cfg).to(device).eval()
        kind = cfg.TEST.CHECKPOINT_TYPE
        load_weights(self._model, path, kind=kind, complete=True, section="TEST")
        self._transform = InputTransform.from_config(cfg, device)
        self._precision = Precision(cfg, device)

    @torch.no_grad()
    def __call__(self, path: str) -> Tensor:
        """The probability of each class, (C,) float64, for a video file or a folder of JPEG frames.

        It is the mean over the views and crops of TEST, or the maximum where DATA.ENSEMBLE_METHOD
        says so. Of a softmax head the probabilities of one view sum to 1; those of a sigmoid head
        are independent of each other.

        Raises:
            UnreadableVideoError: the video cannot be read; says why.
        """
        at_once = max(1, self._cfg.TEST.BATCH_SIZE // max(1, self._cfg.NUM_GPUS))
        parts = torch.split(self.clips(path), at_once)
        scores = torch.cat([self._score(clips) for clips in parts])
        return scores.mean(0) if self._cfg.DATA.ENSEMBLE_METHOD == "sum" else scores.amax(0)

    def clips(self, path: str) -> Tensor:
        """The clips that a video is tested on, (views × crops, T, S, S, 3) uint8.

        Raises:
            UnreadableVideoError: as above.
        """
        cfg, record = self._cfg, scan(path, self._cfg.DATA.MAX_FRAME_PIXELS)
        views = (cfg.TEST.NUM_ENSEMBLE_VIEWS, cfg.TEST.NUM_SPATIAL_CROPS)
        crop = cfg.DATA.TEST_CROP_SIZE
        dataset, video = dataset_class(cfg.TEST.DATASET), record.video
        if dataset.counts_frames:
            video = video._replace(fps=float(cfg.DATA.TARGET_FPS))
        clips = empty_clips(views[0] * views[1], cfg.DATA.NUM_FRAMES, crop)
        for part, clip in enumerate(clips):
            plan = evaluation_plan(dataset, cfg.DATA, video, part, views, crop)
            read_clip(path, record, plan, clip.numpy(), **reading_options(cfg))
        return clips

    def _score(self, clips: Tensor) -> Tensor:
        flips = torch.zeros(len(clips), dtype=torch.bool)
        with self._precision.autocast():
            scores: Tensor = self._model(self._transform(clips, flips))
        return scores.double().cpu()
