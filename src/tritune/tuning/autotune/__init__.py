"""Tuning other people's kernels: the decorator, and what takes the place of `triton.autotune`."""
