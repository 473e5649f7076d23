"""Which code a result was measured with: a result holds for the code it was measured with, and for
no other.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritune.kernels.kernel import Kernel
    from tritune.targets.target import Target


@functools.lru_cache(maxsize=1024)
def identity(kernel: Kernel, target: Target) -> str:
    """A digest of everything that makes a kernel's code for a target, but not its configs.

    It covers the Triton functions with every function that they call, Triton's version, and the
    compiler behind it: ptxas, or tritune's own CPU backend with the CPU's features. Adding a config
    to the space changes nothing; changing a helper function does.
    """
    import triton

    parts = [function.cache_key for function in kernel.functions]
    parts += [triton.__version__, compiler_identity(target)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def compiler_identity(target: Target) -> str:
    """What Triton's backend for a target says of itself; no device is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    # The third is how many lanes run in step, which follows from the architecture.
    return str(make_backend(GPUTarget(target.family, target.arch, 32)).hash())
