"""Configs: the host's defaults and ours, loading with clear errors, and what can be trained."""

from slowfast_patches.config.check import check_config
from slowfast_patches.config.keys import get_cfg
from slowfast_patches.config.load import load_config, parse_config

__all__ = ["check_config", "get_cfg", "load_config", "parse_config"]
