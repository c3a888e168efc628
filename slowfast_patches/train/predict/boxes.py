"""Classify boxes at the key frames of a video with a trained model, and draw the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multigrid import empty_clips
from multigrid.sampling import frames_at
from slowfast_patches.datasets.clips import clip_reader_of, sampling_of
from slowfast_patches.datasets.key_frames import boxes_in_clip, frame_of
from slowfast_patches.datasets.lists.ava_list import Box
from slowfast_patches.datasets.reading.jpeg import frame_files, read_jpeg
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind
from slowfast_patches.datasets.reading.unreadable import UnreadableVideoError
from slowfast_patches.datasets.reading.video_file import open_video
from slowfast_patches.models.solver import autocast
from slowfast_patches.tasks.box_scores import weights_of
from slowfast_patches.train.predict.predictor import Predictor
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure


class BoxPredictor(Predictor):
    """Trained detection model that scores boxes with the test settings of its recipe."""

    tasks = ("detection",)

    @torch.no_grad()
    def boxes(self, path: str, second: int, boxes: Sequence[Box]) -> Tensor:
        """Score boxes of a video file or a folder of JPEG frames.

        Args:
            path: The video file or the folder.
            second: Time of the key frame in seconds, as in AVA's annotations.
            boxes: Boxes (x1, y1, x2, y2), as fractions of the width and height of the frame.

        Returns:
            The probability of each class for each box, (boxes, classes) float64.

        Raises:
            UnreadableVideoError: The video cannot be read, or ends before the key frame.
        """
        recipe = self.recipe
        reader = clip_reader_of(recipe)
        scanned = scan(path, reader.limits)
        centre = frame_of(second, scanned.video)
        crops = recipe.test.num_spatial_crops
        crop = recipe.data.test_crop_size
        sampling = sampling_of(recipe, "test")
        plans = [
            sampling.evaluation_plan(scanned.video, part, (1, crops), crop, centre)
            for part in range(crops)
        ]
        clips = empty_clips(crops, recipe.data.num_frames, crop)
        reader.read_clips(path, scanned, plans, [clip.numpy() for clip in clips])
        sums = torch.zeros(len(boxes), recipe.model.num_classes, dtype=torch.float64)
        total = torch.zeros(len(boxes), 1, dtype=torch.float64)
        for clip, plan in zip(clips, plans, strict=True):
            inside, parts = boxes_in_clip(np.asarray(boxes), plan)
            rows = torch.from_numpy(np.pad(inside, ((0, 0), (1, 0))))
            with autocast(recipe, self._device):
                inputs = self._transform(clip[None], torch.zeros(1, dtype=torch.bool))
                scores = self._model(inputs, rows.to(inputs[0].device))
            weights = weights_of(torch.from_numpy(parts[:, 0])).view(-1, 1)
            sums += scores.double().cpu() * weights
            total += weights
        return sums / total

    def draw(
        self,
        path: str,
        second: int,
        boxes: Sequence[Box],
        texts: Sequence[str],
        out: Path,
    ) -> None:
        """Draw boxes and texts on the key frame at `second`, and write the picture to `out`."""
        picture = self._frame(path, second)
        height, width = picture.shape[:2]
        figure, [axes] = new_figure(rows=1, width=8 * width / height, height=8)
        axes.imshow(picture)
        axes.set_axis_off()
        for number, ((x1, y1, x2, y2), text) in enumerate(zip(boxes, texts, strict=True)):
            colour = COLOURS[number % len(COLOURS)]
            across = np.array([x1, x2, x2, x1, x1]) * width - 0.5
            down = np.array([y1, y1, y2, y2, y1]) * height - 0.5
            axes.plot(across, down, color=colour, linewidth=3)
            axes.text(across[0], down[0], text, color="white", va="top", bbox={"color": colour})
        save_figure(figure, out)

    def _frame(self, path: str, second: int) -> NDArray[np.uint8]:
        """Read the key frame at `second`, (H, W, 3) RGB."""
        limits = clip_reader_of(self.recipe).limits
        scanned = scan(path, limits)
        moment = np.array([frame_of(second, scanned.video)])
        wanted = int(frames_at(moment, scanned.video)[0])
        if scanned.kind == Kind.FRAMES:
            return read_jpeg(path, frame_files(path)[wanted], limits=limits)[..., ::-1]
        with open_video(path, limits) as file:
            for number, frame in enumerate(file.frames()):
                if number == wanted:
                    return scanned.orientation.shown(
                        cast(NDArray[np.uint8], frame.to_ndarray(format="rgb24"))
                    )
        raise UnreadableVideoError(f"cannot be decoded: it has no frame {wanted}")
