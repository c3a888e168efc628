"""Multigrid training inside loops of others; the modules for frameworks need theirs."""
