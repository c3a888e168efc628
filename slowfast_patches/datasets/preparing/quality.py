"""Constant rate factors of prepared files. This module must not import slow packages."""

CRF = 23
"""Default constant rate factor of prepared files. It is also the default of x264."""
MAX_CRF = 51
"""Maximum constant rate factor of H.264 with 8 bits."""
