"""Tests of `cpu/lower/math`."""
