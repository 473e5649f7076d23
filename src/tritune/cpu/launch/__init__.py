"""Runs compiled kernels: loads object code, passes arguments, starts the programs of a grid.

`driver.py` imports `threads` while Triton itself is imported, so nothing is imported here.
"""
