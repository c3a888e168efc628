"""ROIAlign (He et al., "Mask R-CNN", 2017, section 3) in plain torch, with detectron2's arguments.

Bilinear sampling on a grid is separable. The mean over the samples of each bin is therefore a
product of the feature map with two small matrices, one for its rows and one for its columns:

    output (C, h, w) = rows (h, H) @ features (C, H, W) @ columns (w, W)ᵀ      for each box
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ROIAlign(nn.Module):
    """Pool the features inside each box into a grid of bins.

    A sample that is more than one position outside the feature map is 0. No gradients flow to the
    boxes.

    Args:
        output_size: Height and width of the grid of bins.
        spatial_scale: Factor from the coordinates of the boxes to positions in the feature map.
        sampling_ratio: Samples per side of a bin. With 0, a bin has about one sample for each
            position of the feature map inside it: ceil(height / h) × ceil(width / w).
        aligned: Put position n of the feature map at coordinate n + 0.5. If False, it is at n, and
            a box is at least 1 wide and high, as in earlier releases of detectron2.

    Shape:
        - input: Features (N, C, H, W).
        - rois: Boxes (M, 5), each (index of the feature map, x1, y1, x2, y2).
        - output: (M, C, *output_size).
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
        # Half precision is too coarse for sample positions, so only the weights are converted.
        rows, columns = (self._bin_weights(*side).to(input) for side in sides)
        by_rows = torch.einsum("mih,mchw->mciw", rows, input[maps])
        return torch.einsum("mjw,mciw->mcij", columns, by_rows)

    def _bin_weights(self, bins: int, edges: tuple[Tensor, Tensor], size: int) -> Tensor:
        """Compute the weights of the positions along one side in the mean of each bin.

        Args:
            bins: Number of bins along the side.
            edges: Start and end of each box, (M,) each.
            size: Number of positions of the feature map along the side.

        Returns:
            Weights (M, bins, size).
        """
        start, end = (edge[:, None, None] for edge in edges)
        length = end - start if self.aligned else (end - start).clamp(min=1)
        counts = (length / bins).ceil() if self.sampling_ratio == 0 else self.sampling_ratio
        counts = torch.as_tensor(counts).clamp(min=0).expand_as(length)
        max_count = max(1, int(counts.max())) if counts.numel() else 1
        sample = torch.arange(max_count, device=length.device)
        bin_ = torch.arange(bins, device=length.device)[:, None]
        points = start + (bin_ + (sample + 0.5) / counts.clamp(min=1)) * (length / bins)
        valid = (sample < counts) & (points >= -1) & (points <= size)
        positions = torch.arange(size, device=length.device)
        overlap = 1 - (points.clamp(0, size - 1)[..., None] - positions).abs()
        weights = overlap.clamp(min=0) * valid[..., None]
        return weights.sum(2) / counts.clamp(min=1)
