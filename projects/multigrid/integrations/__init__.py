"""Multigrid training inside other frameworks; each module requires its framework."""
