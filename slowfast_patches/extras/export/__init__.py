"""Export of trained models: torch.export and ONNX. options.toml has the options of commands."""

FILES = ("tests/slowfast_patches/extras/export",)
"""Files of this extra outside of its folder."""
