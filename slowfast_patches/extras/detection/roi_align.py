"""ROIAlign (He et al., "Mask R-CNN", 2017, section 3) in plain torch, with detectron2's arguments.

Bilinear interpolation at the points of a grid is separable in rows and columns. For each box, the
means over the sampling points of all bins are therefore a product of three matrices:

    output (C, h, w) = row weights (h, H) @ features (C, H, W) @ column weights (w, W)ᵀ
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ROIAlign(nn.Module):
    """Divide each box into a grid of bins, and average the features in each bin.

    Features are interpolated bilinearly at sampling points in the bin. The value at a point more
    than one position outside the feature map is 0. No gradients flow to the boxes.

    Args:
        output_size: Number of bins (h, w) per box.
        spatial_scale: Factor that converts box coordinates to positions in the feature map.
        sampling_ratio: Must be 0, which means about one sampling point per position of the feature
            map: ceil(box height / h) × ceil(box width / w) points per bin.
        aligned: If True, element n of the feature map is at coordinate n + 0.5. If False, it is at
            coordinate n, and boxes are enlarged to at least 1 × 1, as in earlier releases of
            detectron2.

    Shape:
        - input: Features (N, C, H, W).
        - rois: Boxes (M, 5). Each row is (index of the feature map, x1, y1, x2, y2).
        - output: (M, C, h, w).
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
        assert sampling_ratio == 0, sampling_ratio
        self.aligned = aligned

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        assert rois.ndim == 2, rois.shape
        assert rois.shape[1] == 5, rois.shape
        maps = rois[:, 0].long().to(input.device)
        edges = rois[:, 1:].detach() * self.spatial_scale - 0.5 * self.aligned
        left, top, right, bottom = edges.to(torch.promote_types(edges.dtype, torch.float32)).T
        sides = zip(self.output_size, ((top, bottom), (left, right)), input.shape[2:], strict=True)
        # Positions need float32. Only the weights are converted to the dtype of the features.
        rows, columns = (self._bin_weights(*side).to(input) for side in sides)
        by_rows = torch.einsum("mih,mchw->mciw", rows, input[maps])
        return torch.einsum("mjw,mciw->mcij", columns, by_rows)

    def _bin_weights(self, bins: int, edges: tuple[Tensor, Tensor], size: int) -> Tensor:
        """Compute the weight of each row (or column) of the feature map in the mean of each bin.

        Args:
            bins: Number of bins along this axis.
            edges: Start and end of each box along this axis, (M,) each, in positions of the feature
                map.
            size: Number of rows (or columns) of the feature map.

        Returns:
            Weights (M, bins, size).
        """
        start, end = (edge[:, None, None] for edge in edges)
        length = end - start if self.aligned else (end - start).clamp(min=1)
        counts = (length / bins).ceil().clamp(min=0)
        sample = torch.arange(max(counts.flatten().tolist(), default=0), device=length.device)
        bin_ = torch.arange(bins, device=length.device)[:, None]
        points = start + (bin_ + (sample + 0.5) / counts.clamp(min=1)) * (length / bins)
        valid = (sample < counts) & (points >= -1) & (points <= size)
        positions = torch.arange(size, device=length.device)
        overlap = 1 - (points.clamp(0, size - 1)[..., None] - positions).abs()
        weights = overlap.clamp(min=0) * valid[..., None]
        return weights.sum(2) / counts.clamp(min=1)
