"""Every kernel compiles for every GPU architecture with its default config, and the code is good.

Nothing runs: see gpu_compile.py.
"""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import tritune.kernels
from tests.kernels.gpu_calls import FP16, Case, attention_call, dealt_out, paged_call
from tests.kernels.gpu_compile import TARGETS, Target, assembly, compiling_for, spilled_bytes
from tritune.kernels.kernel import Kernel
from tritune.kernels.paged_attention import paged_attention_kernel


def kernels() -> dict[str, Kernel]:
    """The kernels of every module in `tritune.kernels`, under the module's name."""
    names = [m.name for m in pkgutil.iter_modules(tritune.kernels.__path__)]
    modules = {name: importlib.import_module(f"tritune.kernels.{name}") for name in names}
    return {name: m.KERNEL for name, m in modules.items() if hasattr(m, "KERNEL")}


CHOSEN = {
    target: cases
    for family in ("cuda", "hip")
    for target, cases in dealt_out([t for t in TARGETS if t.family == family]).items()
}


def test_every_kernel_has_a_case():
    for cases in CHOSEN.values():
        assert {case.kernel for case in cases.values()} == set(kernels())


@pytest.mark.parametrize(
    ("target", "case"),
    [
        pytest.param(target, case, id=f"{target}-{name}")
        for target, cases in CHOSEN.items()
        for name, case in cases.items()
    ],
)
def test_kernel_compiles_to_good_code(target: Target, case: Case):
    main, *others = kernels()[case.kernel].functions
    with compiling_for(target) as compiled:
        case.call()

    functions = [function for function, _ in compiled]
    assert main in functions
    assert set(functions) <= {main, *others}
    instructions = getattr(target, case.products) if case.products else None
    for function, kernel in compiled:
        assert kernel.metadata.shared <= target.shared_memory, function
        assert spilled_bytes(kernel) == 0, function
        if function is main and instructions is not None:
            assert re.search(instructions, assembly(kernel)), function


@pytest.mark.parametrize(("arch", "size"), [(90, 80), (100, 128)])
def test_descriptors_are_read_by_the_copy_engine(arch: int, size: int):
    [target] = [t for t in TARGETS if t.arch == arch]
    with compiling_for(target, USE_DESCRIPTORS=True) as compiled:
        attention_call(512, FP16, size)
    [(_, kernel)] = compiled
    assert "cp.async.bulk.tensor" in assembly(kernel)
    assert re.search(target.matrix, assembly(kernel))
    assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize("arch", [90, "gfx942"])
def test_a_program_of_several_kv_heads_is_a_gpus_too(arch: int | str):
    """Only a CPU's space has them, as nobody has measured them on a GPU."""
    [target] = [t for t in TARGETS if t.arch == arch]
    with compiling_for(target, KV_HEADS=2) as compiled:
        paged_call(1, FP16, 128)
    [kernel] = [kernel for function, kernel in compiled if function is paged_attention_kernel]
    assert re.search(target.few_rows, assembly(kernel))
    assert spilled_bytes(kernel) == 0
