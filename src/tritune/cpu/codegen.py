"""Compile LLVM IR with LLVM: text to optimised IR, to assembly, to object code.

Results are cached: configs that differ only in a GPU's options (`num_warps`) lower to the same
text, and need no second compilation.
"""

from __future__ import annotations

import functools
from typing import Any

from tritune.cpu.features import Cpu, host

_REMEMBERED = 16


@functools.lru_cache(_REMEMBERED)
def optimise(text: str, cpu: Cpu) -> str:
    """Run LLVM's optimiser over a module and return its text."""
    llvm = _llvm()
    module = _parse(text)
    machine = _machine(cpu)
    module.triple = cpu.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # The lowering emits the vectors it wants; guessing at more costs time and gains nothing.
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(module)


@functools.lru_cache(_REMEMBERED)
def assembly(text: str, cpu: Cpu) -> str:
    """Generate code for an optimised module, as assembly text."""
    return str(_machine(cpu).emit_assembly(_parse(text)))


@functools.lru_cache(_REMEMBERED)
def object_code(llir: str, asm: str, cpu: Cpu) -> bytes:
    """Assemble `asm`, which was generated from `llir`, to an object file."""
    if cpu.arch != host().arch:
        # LLVM's assembler is only there for the host's instruction set: generate the code again.
        return bytes(_machine(cpu).emit_object(_parse(llir)))
    return bytes(_machine(cpu).emit_object(_parse(_asm_module(asm, cpu))))


def _asm_module(asm: str, cpu: Cpu) -> str:
    """Return a module that holds nothing but assembly: emitting it as an object only assembles."""
    lines = (
        line.replace("\\", "\\5C").replace('"', "\\22").replace("\t", "\\09")
        for line in asm.splitlines()
    )
    return f'target triple = "{cpu.triple}"\n' + "".join(f'module asm "{line}"\n' for line in lines)


def _parse(text: str) -> Any:
    module = _llvm().parse_assembly(text)
    module.verify()
    return module


@functools.cache
def _machine(cpu: Cpu) -> Any:
    llvm = _llvm()
    if cpu.arch != host().arch:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    # Position-independent code of the small model: the JIT linker keeps an object's sections
    # together, and reaches functions elsewhere in the process through stubs.
    return llvm.Target.from_triple(cpu.triple).create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=3, reloc="pic", codemodel="small"
    )


@functools.cache
def _llvm() -> Any:
    """Return llvmlite's binding, ready to make code for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm
