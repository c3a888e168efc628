"""Experiment trackers: MLflow, Weights & Biases and Trackio."""

from slowfast_patches.extras.trackers.keys import TrackerKeys
from slowfast_patches.seams import Lazy, register_hook, register_section

FILES = ("tests/slowfast_patches/extras/trackers",)
"""Files of this extra outside of its folder."""

register_section("TRACKER", TrackerKeys)
register_hook(
    lambda recipe: recipe["TRACKER.NAME"] != "",
    Lazy(f"{__name__}.hook:Tracker"),
    check=Lazy(f"{__name__}.hook:check_tracker"),
)
