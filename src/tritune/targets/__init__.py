"""Architectures and devices: limits, binaries, occupancy, measured peaks. No kernel is compiled."""
