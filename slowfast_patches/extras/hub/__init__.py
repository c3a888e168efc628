"""Folders for the Hugging Face Hub. options.toml has the options of commands."""

FILES = ("tests/slowfast_patches/extras/hub",)
"""Files of this extra outside of its folder."""
