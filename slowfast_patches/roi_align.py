"""ROIAlign (He et al., "Mask R-CNN", 2017, section 3) in plain torch, with detectron2's arguments.

Bilinear samples of a grid are a product of two small matrices with the feature map, one along its
rows and one along its columns, and so is their mean over the samples of a bin:

    output (C, h, w) = rows (h, H) @ features (C, H, W) @ columns (w, W)ᵀ      for each box
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ROIAlign"]


class ROIAlign(nn.Module):
    """Features of boxes: (M, C, *output_size) of features (N, C, H, W) and boxes (M, 5).

    A box is (number of its map, x1, y1, x2, y2), in units of which `spatial_scale` makes those of
    the map. Its bins have `sampling_ratio`² samples each, or with 0 about one for each of the map's
    values in it, ceil(height / h) × ceil(width / w). A sample more than one value outside the map
    is 0. With `aligned`, value n of the map lies at n + 0.5; without, as in earlier releases, at n,
    and a box has a size of 1 at least. No gradients flow to the boxes.
    """

    def __init__(
        self,
        output_size: tuple[int, int] | list[int],
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool = True,
    ) -> None:
        super().__init__()
        self.output_size = tuple(output_size)
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.aligned = aligned

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        assert rois.ndim == 2, rois.shape
        assert rois.shape[1] == 5, rois.shape
        maps = rois[:, 0].long().to(input.device)
        edges = rois[:, 1:].detach() * self.spatial_scale - 0.5 * self.aligned
        left, top, right, bottom = edges.to(torch.promote_types(edges.dtype, torch.float32)).T
        sides = zip(self.output_size, ((top, bottom), (left, right)), input.shape[2:], strict=True)
        # A half has too few digits for places; the products are as exact as the features.
        rows, columns = (self._means(*side).to(input) for side in sides)
        by_rows = torch.einsum("mih,mchw->mciw", rows, input[maps])
        return torch.einsum("mjw,mciw->mcij", columns, by_rows)

    def _means(self, bins: int, edges: tuple[Tensor, Tensor], size: int) -> Tensor:
        """The share of each of `size` values along a side in the means of a box's bins, (M, bins,
        size)."""
        start, end = (edge[:, None, None] for edge in edges)
        length = end - start if self.aligned else (end - start).clamp(min=1)
        counts = (length / bins).ceil() if self.sampling_ratio == 0 else self.sampling_ratio
        counts = torch.as_tensor(counts).clamp(min=0).expand_as(length)
        most = max(1, int(counts.max())) if counts.numel() else 1
        sample = torch.arange(most, device=length.device)
        bin_ = torch.arange(bins, device=length.device)[:, None]
        places = start + (bin_ + (sample + 0.5) / counts.clamp(min=1)) * (length / bins)
        counted = (sample < counts) & (places >= -1) & (places <= size)
        values = torch.arange(size, device=length.device)
        near = 1 - (places.clamp(0, size - 1)[..., None] - values).abs()
        weights = near.clamp(min=0) * counted[..., None]
        return weights.sum(2) / counts.clamp(min=1)
