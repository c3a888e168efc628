"""Measure training steps on synthetic clips, for all shapes and several variants of a recipe."""
