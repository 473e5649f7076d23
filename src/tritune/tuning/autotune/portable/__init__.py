"""A kernel and the arguments of a call in a folder, from which another process makes them again.

Worker processes cannot always import a kernel's module: a script must not run twice, a notebook is
no module, a closure has no name. So the kernel travels as what it is: its code, and whatever that
refers to. What is made of it has the cache key of the original, so that what a worker compiles is
in Triton's cache for the process that asked.

The folder is read within seconds by the same Python that wrote it, and then deleted.
"""

from __future__ import annotations

from tritune.tuning.autotune.portable.digest import code_digest
from tritune.tuning.autotune.portable.errors import PortableError
from tritune.tuning.autotune.portable.packer import Packer
from tritune.tuning.autotune.portable.tensors import Placeholder, Regions
from tritune.tuning.autotune.portable.unpacker import Unpacker

__all__ = ["Packer", "Placeholder", "PortableError", "Regions", "Unpacker", "code_digest"]
