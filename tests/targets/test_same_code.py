"""Binaries that differ in what they tell a debugger are the same code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tritune.targets.binary.same_code import code_digest

PTX = """
.version 8.6
.target {arch}
.address_size 64
.visible .entry kernel(.param .u64 out) {{
    .reg .u64 %p;
    .reg .u32 %v;
    .loc 1 {line} 0
    ld.param.u64 %p, [out];
    mov.u32 %v, {value};
    st.global.u32 [%p], %v;
    ret;
}}
.file 1 "kernel.py", {written}, 100
"""


def cubin(folder: Path, arch: str = "sm_80", **values: int) -> bytes:
    from triton import knobs

    source, out = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(PTX.format(**{"arch": arch, "line": 1, "value": 7, "written": 1, **values}))
    tool = knobs.nvidia.ptxas.path
    subprocess.run(
        [tool, "-lineinfo", f"--gpu-name={arch}", str(source), "-o", str(out)], check=True
    )
    return out.read_bytes()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_when_the_source_was_written_does_not_matter(tmp_path: Path, arch: str) -> None:
    one, other = cubin(tmp_path, arch, written=1), cubin(tmp_path, arch, written=2)
    assert one != other
    assert code_digest(one) == code_digest(other)


def test_what_the_code_does_matters(tmp_path: Path) -> None:
    assert code_digest(cubin(tmp_path)) != code_digest(cubin(tmp_path, value=8))


def test_what_is_no_elf_file_is_compared_as_a_whole() -> None:
    assert code_digest(b"one") == code_digest(b"one") != code_digest(b"two")
