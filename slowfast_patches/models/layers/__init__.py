"""Layers that replace those of PySlowFast's models."""
