"""Folders for the Hugging Face Hub. options.toml has the options of commands."""

FILES = (
    "tests/slowfast_patches/extras/hub",
    "tests/slowfast_patches/extras/transformers_and_hub",
)
"""Files of this extra outside of its folder."""
