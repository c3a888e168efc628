"""Settings of a demo data set. This module must not import slow packages."""

from dataclasses import dataclass

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class DemoSpec:
    """Settings of a demo data set.

    Attributes:
        train: Number of training videos.
        val: Number of validation videos.
        test: Number of test videos.
        seed: Seed of all videos.
        frames: Number of frames per video.
        width: Width of a frame in pixels.
        height: Height of a frame in pixels.
    """

    train: int = 640
    val: int = 160
    test: int = 320
    seed: int = 0
    frames: int = 40
    width: int = 80
    height: int = 64

    def __post_init__(self) -> None:
        sides = (self.width, self.height)
        if min(sides) < 32 or sides[0] % 2 or sides[1] % 2:  # H.264 requires even sides
            from slowfast_patches.utils.errors import UserError  # Lazy: this imports torch.

            raise UserError(
                f"the frame size is {self.width} × {self.height}, but both must be even and at "
                "least 32"
            )
