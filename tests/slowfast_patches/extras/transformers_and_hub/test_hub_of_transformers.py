"""Folders of transformers for the Hub, with the real pipeline, and read back.

slowfast_patches.extras.hub.folder writes them with slowfast_patches.extras.transformers.hub.
"""

import numpy as np
import pytest
import torch
from transformers import pipeline

import slowfast_patches
from tests.slowfast_patches.datasets.made_videos import write_video
from tests.slowfast_patches.extras.hub.conftest import NAMES, _one_block, published

__all__ = ["_one_block", "published"]

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
PATCHES = {"vivit": {"tubelet_size": [2, 8, 8]}}


def transformer(kind: str) -> tuple[object, ...]:
    """Return the keys of a small transformer."""
    config = str(SMALL | PATCHES.get(kind, {"patch_size": 8}))
    hf = ("MODEL.ARCH", "hf", "HF.MODEL", kind, "HF.CONFIG", config)
    return (*hf, "DATA.MEAN", [0.3, 0.4, 0.5])


@pytest.fixture
def video(tmp_path) -> str:
    """16 frames, as many as a clip of 8 frames with stride 2, that move and change colour."""
    down, across, colour = np.meshgrid(range(60), range(80), (1, 4, 9), indexing="ij")
    waves = [
        np.sin(across / 9 + t / 3 + colour) + np.cos(down / 7 + t * colour / 9) for t in range(16)
    ]
    images = [(127 + 60 * wave).astype(np.uint8) for wave in waves]
    return str(write_video(tmp_path / "video.mp4", images, options={"crf": "4"}))


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("videomae", ("TEST.NUM_SPATIAL_CROPS", 1, "DATA.TRAIN_JITTER_SCALES", [60, 64])),
        ("timesformer", ("MODEL.HEAD_ACT", "sigmoid", "DATA.MULTI_LABEL", True)),
    ],
)
def test_the_pipeline_of_transformers_gives_the_scores_of_the_trainer(
    published, tmp_path, video, kind, keys
):
    model, folder = published(*transformer(kind), *keys)
    classify = pipeline("video-classification", model=str(folder))
    found = {row["label"]: row["score"] for row in classify(video, frame_sampling_rate=2, top_k=8)}
    expected = dict(zip(NAMES, model.scores(video).tolist(), strict=True))
    assert found == pytest.approx(expected, abs=0.01)
    assert max(expected.values()) - min(expected.values()) > 0.1
    assert str(tmp_path) not in "".join(file.read_text() for file in folder.glob("*.[jmy]*"))


@pytest.mark.parametrize("kind", ["vivit", "vjepa2"])
def test_a_transformer_is_read_back(published, video, kind):
    model, folder = published(*transformer(kind))
    again = slowfast_patches.load_model(folder)
    torch.testing.assert_close(again.scores(video), model.scores(video))
    assert again.class_names == NAMES
