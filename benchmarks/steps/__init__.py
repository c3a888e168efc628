"""Timing of training steps on synthetic clips, for shapes and variants of a recipe."""
