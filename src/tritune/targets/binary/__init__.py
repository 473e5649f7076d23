"""Read binaries without loading them: the registers, memory and instructions of a kernel. One
interface for NVIDIA's cubins, AMD's hsacos and the CPU's objects.
"""

from tritune.targets.binary.facts import BinaryError, BinaryFacts
from tritune.targets.binary.histogram import count_instructions
from tritune.targets.binary.read import binary_of, read_binary, read_compiled

__all__ = [
    "BinaryError",
    "BinaryFacts",
    "binary_of",
    "count_instructions",
    "read_binary",
    "read_compiled",
]
