"""Replacements for layers of PySlowFast's models."""
