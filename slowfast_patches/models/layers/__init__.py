"""Layers that replace the corresponding layers of PySlowFast's models."""
