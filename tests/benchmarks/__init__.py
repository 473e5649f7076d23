"""Tests of the programs in benchmarks/, and of how they measure."""
