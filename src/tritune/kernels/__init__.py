"""Device code, one file per Triton kernel, with its space, its problem, its default config and its
reference.

Nothing here launches anything: that is what `ops/` does. A kernel file imports Triton, torch (for
the reference only), `tritune.space`, `kernel.py` and what the table in `targets/` says of GPUs.
"""
