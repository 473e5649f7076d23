"""Triton's start-up work, done once per process before the first config's clock runs.

Triton hashes its own library, loads a backend and makes a launcher when it is first used: a second
or so that is no config's doing.
"""

import triton


@triton.jit
def _nothing() -> None:
    pass


def warm_up(launching: bool) -> None:
    """Take a kernel that does nothing through Triton, up to its launch if that is wanted."""
    if launching:
        _nothing[(1,)]()
    else:
        _nothing.warmup(grid=(1,))
