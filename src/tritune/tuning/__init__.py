"""The pipeline from a problem to a winner: search, build, verify, measure, and the tuner that joins
them. Nothing here knows a kernel by name.
"""
