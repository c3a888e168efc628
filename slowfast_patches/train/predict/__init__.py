"""Predict the classes of videos with a trained model, and export the model."""

from slowfast_patches.train.predict.predictor import Predictor, load_model, read_checkpoint

__all__ = ["Predictor", "load_model", "read_checkpoint"]
