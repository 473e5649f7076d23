"""Triton's compiler interface: the stages from Triton's IR to object code for a CPU.

Triton imports this module when it is imported itself, so nothing that can fail is imported here.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if "triton" not in sys.modules:
    # Triton looks for its backends when it is imported, and would find this module half made. Let
    # it import the module in peace; that copy is the one that stays.
    sys.modules.pop(__name__, None)
    import triton  # noqa: F401

from triton.backends.compiler import BaseBackend, GPUTarget

if TYPE_CHECKING:
    from types import ModuleType

    from tritune.cpu.features import Cpu
    from tritune.cpu.options import CodeOptions, CPUOptions


#: The version of the code that the lowering generates. Stored results are keyed by it: raise it in
#: the commit that changes generated code, and in no other. tests/golden fails until that is done.
CODE_GENERATION = 1

#: Version 1 was named by a digest of the sources, which results were stored under.
_STORED_AS = {
    1: "cpu-0.1.0.dev0-d610910c46d9b0459f2121c4da9a94f99eef74e3cabaabb22b70e262f62d1209",
}


class CPUBackend(BaseBackend):
    """Compiles Triton's IR for the CPU that `target.arch` names."""

    binary_ext = "obj"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == "cpu")

    @property
    def cpu(self) -> Cpu:
        from tritune.cpu import features

        return features.resolve(self.target.arch)

    def hash(self) -> str:
        """Return what cached objects depend on besides the kernel: this package and the CPU.

        By every byte of the sources: who edits them must not get an object from before the edit.
        """
        return f"{_sources_digest()}-{self.codegen_identity()}"

    def codegen_identity(self) -> str:
        """Return what measured results depend on besides the kernel: the code, LLVM and the CPU."""
        import llvmlite

        version = _STORED_AS.get(CODE_GENERATION, f"cpu-{CODE_GENERATION}")
        return f"{version}-llvmlite-{llvmlite.__version__}-{self.cpu}"

    def parse_options(self, opts: dict[str, Any]) -> CPUOptions:
        from tritune.cpu import options

        return options.parse(opts, str(self.target.arch))

    def get_codegen_implementation(self, options: CPUOptions) -> dict[str, Any]:
        return {"min_dot_size": lambda lhs_type, rhs_type: (1, 1, 1)}

    def get_module_map(self) -> dict[str, ModuleType]:
        # The lowering knows libdevice's functions by their CUDA symbols.
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context: Any) -> None:
        """Load nothing: Triton's own dialects are enough."""

    def pack_metadata(self, metadata: Any) -> tuple[int, int, int]:
        return metadata.num_warps, metadata.num_ctas, metadata.shared

    def add_stages(self, stages: dict[str, Any], options: CPUOptions, language: Any = None) -> None:
        from tritune.cpu import stage_errors
        from tritune.errors import CompileError

        if getattr(language, "name", "TRITON") != "TRITON":
            raise CompileError("a Gluon kernel", "Gluon programs a GPU's own layouts and memories")
        cpu, code = self.cpu, options.code()
        generated_from: dict[str, str] = {}

        def make_ttir(module: Any, metadata: dict[str, Any]) -> Any:
            from tritune.cpu import ttir

            return ttir.optimise(module, code)

        def make_llir(module: Any, metadata: dict[str, Any]) -> str:
            from tritune.cpu import codegen

            text, found = _lowered(str(module), code, cpu)
            metadata.update(found)
            return codegen.optimise(text, cpu)

        def make_asm(llir: str, metadata: dict[str, Any]) -> str:
            from tritune.cpu import codegen

            asm = codegen.assembly(llir, cpu)
            generated_from[asm] = llir
            return asm

        def make_obj(asm: str, metadata: dict[str, Any]) -> bytes:
            from tritune.cpu import codegen
            from tritune.cpu.launch import loader

            return loader.seal(codegen.object_code(generated_from.get(asm, ""), asm, cpu))

        own = {"ttir": make_ttir, "llir": make_llir, "asm": make_asm, "obj": make_obj}
        stages.update(stage_errors.guarded(own))


@functools.lru_cache(16)
def _lowered(text: str, options: CodeOptions, cpu: Cpu) -> tuple[str, dict[str, Any]]:
    """Lower a TTIR module to LLVM IR; return it with the metadata found on the way.

    Cached for configs that differ only in a GPU's options.
    """
    from tritune.cpu import lower, ttir

    with _garbage_collection_paused():
        module = ttir.parse(text)
        # One byte, not none: programs divide a device's shared memory by what a kernel uses of it.
        metadata: dict[str, Any] = {"name": module.entry.name, "shared": 1, "asserts": []}
        lowered = lower.lower(module, options, cpu, metadata)
    # The launcher flushes the output of kernels that print.
    metadata["prints"] = "printf" in lowered
    return lowered, metadata


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause the garbage collector: with it, traversing the IR again and again doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def _sources_digest() -> str:
    import hashlib
    from pathlib import Path

    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
