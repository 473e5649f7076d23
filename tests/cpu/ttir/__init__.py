"""Tests of `cpu/ttir`."""
