"""Verifying and timing configs in a process that may die of it."""
