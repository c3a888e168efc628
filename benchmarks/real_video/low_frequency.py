"""Low-frequency crops of EfficientTrain++ (Wang et al., 2024), for a recipe in recipes/rivals.

The recipe names this module in IMPORTS. A window that is reduced to half its side or less is then
cut to its lowest frequencies, where the reader averages areas otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.datasets.reading import pixels

_usual_resize = pixels._resize


def resize(samples: NDArray[Any], out: NDArray[Any]) -> None:
    """Resize a plane or picture into `out`."""
    height, width = out.shape[:2]
    if max(samples.shape[0] / height, samples.shape[1] / width) < 2:
        _usual_resize(samples, out)
        return
    top = np.iinfo(out.dtype).max
    out[...] = np.clip(np.rint(low_frequencies(samples, (height, width))), 0, top)


def low_frequencies(samples: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float64]:
    """Crop the 2-D spectrum around frequency 0, and transform it back.

    Args:
        samples: Plane (H, W) or picture (H, W, C).
        size: Height and width of the result, which must not exceed H and W.
    """
    axes = (0, 1)
    spectrum = np.fft.fftshift(np.fft.fft2(samples, axes=axes), axes=axes)
    for axis, (before, after) in enumerate(zip(samples.shape, size, strict=False)):
        first = before // 2 - after // 2
        spectrum = spectrum.take(range(first, first + after), axis)
    values = np.fft.ifft2(np.fft.ifftshift(spectrum, axes=axes), axes=axes).real
    scale = (size[0] * size[1]) / (samples.shape[0] * samples.shape[1])
    low: NDArray[np.float64] = scale * values
    return low


# The reader has no option for another resizing.
pixels._resize = resize
