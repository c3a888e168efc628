"""Multigrid training inside frameworks that keep the loop; each module needs its framework."""
