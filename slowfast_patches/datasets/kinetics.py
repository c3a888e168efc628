"""The Kinetics data set: 400, 600, 700, or any csv of videos."""

from __future__ import annotations

from fvcore.common.config import CfgNode

from multigrid import ClipPlan
from slowfast_patches.datasets.clips import ClipDataset, TooManyUnreadableError
from slowfast_patches.datasets.csv_list import LabelledVideo, csv_path, read_csv
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.video_record import VideoRecord

__all__ = ["Kinetics", "TooManyUnreadableError"]


class Kinetics(ClipDataset[LabelledVideo]):
    """Clips of the video files of a csv, each with one label."""

    def _read_list(self, cfg: CfgNode) -> list[LabelledVideo]:
        path = csv_path(cfg, self.split)
        videos = read_csv(
            path,
            prefix=cfg.DATA.PATH_PREFIX,
            separator=cfg.DATA.PATH_LABEL_SEPARATOR,
            num_classes=cfg.MODEL.NUM_CLASSES,
        )
        self.index = open_index(path, [video.path for video in videos])
        return videos

    def _record(self, number: int, video: LabelledVideo) -> VideoRecord:
        return self.index.record(number)

    def _label(self, video: LabelledVideo, plan: ClipPlan | None) -> int:
        return video.label
