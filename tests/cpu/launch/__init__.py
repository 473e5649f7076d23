"""Tests of `cpu/launch`."""
