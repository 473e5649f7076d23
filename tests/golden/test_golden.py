"""Generated code is what it was when its version was raised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.golden import binaries, corpus, hashes, lowered
from tritune.cpu.compiler import CODE_GENERATION
from tritune.targets.target import Target

VERSION, STORED = hashes.read(hashes.LOWERED)
ENTRIES = {entry.name: entry for entry in corpus.read()}


def test_hashes_belong_to_this_version_of_the_code():
    assert str(CODE_GENERATION) == VERSION, (
        "CODE_GENERATION was raised: run `make golden UPDATE=1`, which stores the new hashes"
    )
    assert set(STORED) == set(ENTRIES)


def test_passes_and_options_belong_to_this_version_of_the_code():
    assert hashes.passes_digest() == hashes.stored_passes(), (
        "Triton's passes, LLVM's options or the defaults of options changed. If generated code "
        "changes with them, raise CODE_GENERATION in src/tritune/cpu/compiler.py; then run `make "
        "golden UPDATE=1`"
    )


def test_digests_of_gpu_code_belong_to_the_pinned_triton():
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text()
    [pinned] = re.findall(r"^triton==(\S+)", constraints, re.MULTILINE)
    assert hashes.read(hashes.BINARIES)[0] == pinned, "run `make golden UPDATE=1` with that Triton"


@pytest.mark.parametrize("name", ENTRIES)
def test_code_for_cpus_is_unchanged(name: str):
    changed = hashes.changes({name: STORED[name]}, {name: lowered.summaries(ENTRIES[name])})
    assert not changed, (
        "the CPU backend generates other code than before. If it should not: `make golden "
        f"AGAINST=main ENTRY={name}` shows the difference. If it should: raise CODE_GENERATION in "
        "src/tritune/cpu/compiler.py, so that stored results are not used for other code, and run "
        "`make golden UPDATE=1`"
    )


@pytest.mark.skipif(not binaries.pinned(), reason="the digests are those of another Triton")
@pytest.mark.parametrize(
    ("name", "op", "fields", "target"),
    [
        pytest.param(name, op, fields, target, id=f"{name} on {target}")
        for name, (op, fields, targets) in binaries.jobs().items()
        for target in targets
    ],
)
def test_code_for_gpus_is_unchanged(name: str, op: str, fields: Mapping[str, Any], target: Target):
    _, stored = hashes.read(hashes.BINARIES)
    assert binaries.summary(op, fields, target) == stored[name][str(target)], (
        "a kernel compiles to other code than before. If it should not, compare with the code "
        "before your change. If it should, run `make golden UPDATE=1`, and write the digest of its "
        "device code into src/tritune/kernels/released.json as tests/policy asks for"
    )
