"""Reading binaries without loading them: what a kernel's code takes of a core, and what it is made
of. One interface for NVIDIA's cubins, AMD's hsacos and the CPU's objects.
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
