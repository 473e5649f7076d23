"""Binaries are read as the vendors' own tools read them, and damaged ones are refused."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest
import torch
from triton import knobs

from tests.targets.compiled import compiled
from tritune.cpu import features
from tritune.targets.binary import (
    BinaryError,
    BinaryFacts,
    binary_of,
    count_instructions,
    read_binary,
    read_compiled,
)
from tritune.targets.target import Target

NVIDIA = [pytest.param(Target("cuda", c), id=f"sm_{c}") for c in (75, 80, 90, 100, 120)]
AMD = [
    pytest.param(Target("hip", arch), id=arch)
    for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
]
SM_80, GFX942 = Target("cuda", 80), Target("hip", "gfx942")


@pytest.mark.parametrize("target", NVIDIA)
def test_a_cubin_is_read_as_cuobjdump_reads_it(target: Target, tmp_path: Path):
    kernel = compiled(target)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    tool = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
    text = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", text)}

    facts = read_compiled(kernel)
    assert facts.registers == usage["REG"]
    assert facts.spill_bytes == usage["STACK"] + usage["LOCAL"]
    assert facts.shared_bytes == kernel.metadata.shared
    assert 0 < facts.code_bytes < len(kernel.asm["cubin"])


@pytest.mark.parametrize("target", AMD)
def test_a_hsaco_is_read_as_the_assembly_says(target: Target):
    kernel = compiled(target)
    said = dict(re.findall(r"\.(\w+):\s*(\d+)", kernel.asm["amdgcn"]))
    facts = read_compiled(kernel)
    assert facts.registers == int(said["vgpr_count"])
    assert facts.spill_bytes == int(said["private_segment_fixed_size"])
    assert facts.shared_bytes == kernel.metadata.shared
    assert 0 < facts.code_bytes < len(kernel.asm["hsaco"])


@pytest.mark.parametrize(
    ("target", "options"),
    [(SM_80, {"maxnreg": 32}), (GFX942, {"waves_per_eu": 8})],
    ids=["cuda", "hip"],
)
def test_what_registers_have_no_room_for_is_counted_in_bytes(
    target: Target, options: dict[str, int]
):
    facts = read_compiled(compiled(target, size=128, **options))
    assert facts.spill_bytes is not None
    assert facts.spill_bytes > 0
    assert facts.spill_bytes % 4 == 0
    assert facts.registers is not None
    assert facts.registers <= 64


@pytest.mark.parametrize(
    ("target", "matrix"), [(SM_80, "HMMA.16816.F32"), (GFX942, "v_mfma_f32_")], ids=str
)
def test_the_histogram_counts_matrix_instructions(target: Target, matrix: str):
    counts = count_instructions(target, compiled(target).asm)
    assert sum(count for name, count in counts.items() if name.startswith(matrix)) >= 8
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_a_cpus_object_tells_the_size_of_its_code_and_its_instructions():
    target = Target("cpu", features.host().name)
    kernel = compiled(target)
    facts = read_compiled(kernel)
    assert (facts.registers, facts.spill_bytes, facts.shared_bytes) == (None, None, 0)
    assert 0 < facts.code_bytes < len(kernel.asm["obj"])
    assert sum(count_instructions(target, kernel.asm).values()) > 20
    with pytest.raises(BinaryError, match="damaged"):
        read_binary(target, kernel.asm["obj"][:-1])


@pytest.mark.parametrize("target", [SM_80, GFX942], ids=str)
def test_a_binary_that_was_cut_off_is_refused(target: Target):
    binary = binary_of(target, compiled(target).asm)
    for part in torch.linspace(0, 0.99, 40).tolist():
        with pytest.raises(BinaryError, match="damaged"):
            read_binary(target, binary[: int(part * len(binary))])


@pytest.mark.parametrize("target", [SM_80, GFX942], ids=str)
def test_any_changed_byte_is_read_or_refused_but_nothing_else(target: Target):
    binary = bytearray(binary_of(target, compiled(target).asm))
    for at in range(0, len(binary), max(1, len(binary) // 400)):
        changed = binary.copy()
        changed[at] ^= 0xFF
        with contextlib.suppress(BinaryError):
            assert isinstance(read_binary(target, bytes(changed)), BinaryFacts)


def test_a_binary_of_another_kind_is_refused():
    with pytest.raises(BinaryError, match="no kernel"):
        read_binary(SM_80, binary_of(GFX942, compiled(GFX942).asm))
    with pytest.raises(BinaryError, match="no note"):
        read_binary(GFX942, binary_of(SM_80, compiled(SM_80).asm))


def test_a_missing_stage_is_named():
    with pytest.raises(BinaryError, match="no cubin for cuda:80 among the stages: ttir, ptx"):
        read_binary(SM_80, {"ttir": "", "ptx": ""})
    with pytest.raises(BinaryError, match="amdgcn"):
        count_instructions(GFX942, {"hsaco": b""})


def test_a_missing_disassembler_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asm = compiled(SM_80).asm
    monkeypatch.setattr(
        "tritune.targets.binary.histogram._disassembler", lambda: str(tmp_path / "nvdisasm")
    )
    with pytest.raises(BinaryError, match="nvdisasm cannot be used"):
        count_instructions(SM_80, asm)
