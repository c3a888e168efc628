"""Low-frequency crops of EfficientTrain++ (Wang et al., 2024), for a recipe in recipes/rivals.

The recipe names this module in IMPORTS. If a window is reduced to half
its side or less, the reader then keeps only its lowest frequencies instead of averaging areas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.datasets.reading import reader

_AXES = (0, 1)
_usual_resize = reader._resize


def resize(samples: NDArray[Any], out: NDArray[Any]) -> None:
    """Resize a plane or picture into `out`."""
    height, width = out.shape[:2]
    if max(samples.shape[0] / height, samples.shape[1] / width) < 2:
        _usual_resize(samples, out)
    else:
        low = np.rint(low_frequencies(samples, height, width))
        out[...] = low.clip(0, np.iinfo(out.dtype).max)


def low_frequencies(samples: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
    """Crop the 2-D spectrum of a plane (H, W) or picture (H, W, C), and transform it back.

    `height` and `width` of the result must not exceed H and W.
    """
    spectrum = np.fft.fftshift(np.fft.fft2(samples, axes=_AXES), axes=_AXES)
    top = samples.shape[0] // 2 - height // 2
    left = samples.shape[1] // 2 - width // 2
    part = np.fft.ifftshift(spectrum[top : top + height, left : left + width], axes=_AXES)
    values: NDArray[np.float64] = np.fft.ifft2(part, axes=_AXES).real
    return values * (values.size / samples.size)


# The reader has no option for another resizing.
reader._resize = resize
