"""The pipeline from a problem to a winner; nothing here knows a kernel by name.

`tuner.py` runs it on a case (`case.py`): `search/` proposes configs, `compile/` builds them,
`measure/` verifies and times them, in processes of `workers/`. `autotune/` brings other people's
kernels to it.
"""
