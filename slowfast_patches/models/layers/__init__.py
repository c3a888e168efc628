"""Layers in the place of the host's."""
