"""The loops that limits are measured with are what they say, for every kind of CPU."""

from __future__ import annotations

import re
import struct
from ctypes import c_int32

import pytest
import torch

from tritune.cpu import codegen, features
from tritune.cpu.features import Cpu
from tritune.targets import peak_loops

AVX2 = Cpu("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma", 256)
AVX512 = Cpu(
    "x86_64-unknown-linux-gnu", "sapphirerapids",
    "+avx512bf16,+avx512f,+avx512fp16,+avx512vl,+fma", 512,
)  # fmt: skip
CPUS = {
    "x86-64-v2": features.resolve("x86-64-v2"),
    "AVX2": AVX2,
    "AVX-512": AVX512,
    "AArch64": features.resolve("aarch64"),
    "AArch64 with bf16": Cpu(
        "aarch64-unknown-linux-gnu", "neoverse-v1", "+bf16,+fullfp16,+neon", 128
    ),
}


def assembly(text: str, cpu: Cpu) -> str:
    return codegen.assembly(codegen.optimise(text, cpu), cpu)


@pytest.mark.parametrize(
    ("name", "dtype", "instruction", "flops"),
    [
        ("x86-64-v2", "float32", "mulps", 8),
        ("AVX2", "float32", "vfmadd231ps", 16),
        ("AVX-512", "float32", "vfmadd231ps", 32),
        ("AVX-512", "bfloat16", "vdpbf16ps", 64),
        ("AVX-512", "float16", "vfmadd231ph", 64),
        ("AArch64", "float32", "fmla", 8),
        ("AArch64 with bf16", "bfloat16", "bfmmla", 32),
        ("AArch64 with bf16", "float16", "fmla", 16),
    ],
)
def test_a_loop_multiplies_in_registers_alone(
    name: str, dtype: str, instruction: str, flops: int
) -> None:
    cpu = CPUS[name]
    known = peak_loops.multiply_adds(cpu)[dtype]
    assert known.flops == flops
    blocks = re.split(r"^\S+:.*$", assembly(peak_loops.multiplying(cpu, known), cpu), flags=re.M)
    loops = [block for block in blocks if re.search(rf"\t{instruction}\s", block)]
    assert loops
    for block in loops:
        lines = [line for line in block.splitlines() if re.search(rf"\t{instruction}\s", line)]
        assert len(lines) == peak_loops.sums(cpu)
        in_memory = "[" if cpu.arch == "aarch64" else "("
        assert not [line for line in lines if in_memory in line]


def test_dtypes_without_instructions_of_their_own_have_no_loop() -> None:
    assert set(peak_loops.multiply_adds(AVX2)) == {"float32"}


@pytest.mark.parametrize("name", CPUS)
def test_memory_is_read_and_copied_in_vectors_of_the_full_width(name: str) -> None:
    cpu = CPUS[name]
    register = {128: "%xmm", 256: "%ymm", 512: "%zmm"}[cpu.vector_bits]
    if cpu.arch == "aarch64":
        register = "\tq"
    for text in (peak_loops.reading(cpu, streams=2, ahead=1024), peak_loops.copying(cpu)):
        assert register in assembly(text, cpu)


@pytest.mark.parametrize(("streams", "ahead"), [(1, 0), (2, 2048)])
def test_every_byte_is_read_once(streams: int, ahead: int) -> None:
    cpu, programs, lines = features.host(), 3, 8
    words = torch.arange(programs * lines * peak_loops.LINE // 4, dtype=torch.int32)
    result = torch.zeros(peak_loops.LINE // 4, dtype=torch.int32)
    entry = peak_loops.entry_of(peak_loops.reading(cpu, streams, ahead), cpu)
    status, read = (c_int32 * 8)(), 0
    for program in range(programs):
        source = words.data_ptr() + program * lines * peak_loops.LINE
        pack = struct.pack(
            "<QQqq", source, result.data_ptr(), lines * peak_loops.LINE, lines // streams
        )
        entry(pack, 1, 1, 1, 1, status)
        read += int(result[: cpu.vector_bits // 32].sum())
    assert read == int(words.sum())


def test_every_byte_is_copied() -> None:
    cpu, programs, lines = features.host(), 3, 8
    source = torch.arange(programs * lines * peak_loops.LINE // 4, dtype=torch.int32)
    target = torch.zeros_like(source)
    entry = peak_loops.entry_of(peak_loops.copying(cpu), cpu)
    pack = struct.pack(
        "<QQqq", source.data_ptr(), target.data_ptr(), lines * peak_loops.LINE, lines
    )
    entry(pack, programs, 1, 1, 2, (c_int32 * 8)())
    assert torch.equal(source, target)
