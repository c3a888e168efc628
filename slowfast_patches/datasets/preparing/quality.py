"""Constant rate factors of prepared files. This module must not import slow packages."""

CRF = 18
"""Default constant rate factor of prepared files.

With eight seeds on small clips, it costs 0.6 ± 0.8 points of top-1, and 23 costs 1.5 ± 1.5
(docs/data.md, "Quality of prepared files").
"""
MAX_CRF = 51
"""Maximum constant rate factor of H.264 with 8 bits."""
