"""Decides how loop nests are written: lanes, buffers, conditions that are checked first."""
