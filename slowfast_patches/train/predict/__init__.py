"""Trained models that score videos or boxes, and their export."""

from slowfast_patches.train.predict.predictor import Predictor, load_model, read_checkpoint

__all__ = ["Predictor", "load_model", "read_checkpoint"]
