"""Pilot: train a baseline and multigrid cycles briefly, and advise which to train in full."""

from slowfast_patches.seams import register_length_advice

FILES = (
    "docs/pilot.md",
    "tests/slowfast_patches/extras/pilot",
    "tools/pilot.py",
)
"""Files of this extra outside of its folder."""

register_length_advice("try it with multigrid-pilot")
