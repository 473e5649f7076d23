"""Tests that need the CPU backend, and the oracles that they are compared with."""
