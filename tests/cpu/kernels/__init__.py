"""Whole kernels, each in one file with its torch reference."""
