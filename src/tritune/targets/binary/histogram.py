"""Count the instructions of a kernel's code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritune.targets.binary.facts import BinaryError
from tritune.targets.binary.read import binary_of
from tritune.targets.target import Target

#: An instruction of NVIDIA's disassembler: an address in a comment, perhaps a predicate, a name.
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
#: In assembly an instruction is indented; a directive begins with a dot, a comment with ; or #.
_ASSEMBLY = re.compile(r"^[ \t]+([a-z][\w.]*)(?=\s|$)", re.MULTILINE)
#: A disassembler that takes longer than this hangs.
_TIMEOUT_SECONDS = 120


def count_instructions(target: Target, asm: Mapping[str, Any]) -> Mapping[str, int]:
    """Return how often each instruction occurs in a kernel's stages, the most frequent first.

    A cubin is disassembled by the tool that comes with Triton, which takes about a second.
    """
    if target.family == "cuda":
        found = _SASS.findall(_disassembled(binary_of(target, asm)))
    else:
        found = _ASSEMBLY.findall(_assembly(target, asm))
    if not found:
        raise BinaryError(f"there is no instruction in the code for {target}")
    return dict(Counter(found).most_common())


def _assembly(target: Target, asm: Mapping[str, Any]) -> str:
    name = "amdgcn" if target.family == "hip" else "asm"
    text = asm.get(name)
    if not isinstance(text, str):
        raise BinaryError(
            f"instructions for {target} are counted in its assembly, {name!r}, "
            f"which is not among the stages: {', '.join(asm) or 'none'}"
        )
    return text


def _disassembled(cubin: bytes) -> str:
    tool = _disassembler()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            done = subprocess.run(
                [tool, "-c", str(path)], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BinaryError(f"{tool} cannot be used: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it does not say why"]
        raise BinaryError(f"{tool} cannot read this cubin: {lines[-1]}")
    return done.stdout


def _disassembler() -> str:
    from triton import knobs

    try:
        return str(knobs.nvidia.nvdisasm.path)
    except (AttributeError, RuntimeError) as error:
        raise BinaryError(
            f"nvdisasm is missing, which comes with Triton's wheel: {error}. Install triton anew, "
            "or set TRITON_NVDISASM_PATH"
        ) from None
