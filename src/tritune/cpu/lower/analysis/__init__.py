"""Analyses of a function before code is written: uses, strides, affine ranges."""
