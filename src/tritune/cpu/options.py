"""The options of a compilation: the CPU's own, and the GPUs', which are accepted and ignored."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
from typing import Any

#: The CPU's own options, each 0 where the backend chooses: the largest value allowed.
OWN = {
    "micro_m": 64,  # rows of the dot micro-tile
    "micro_n": 64,  # vectors in a row of the dot micro-tile
    "unroll": 64,  # unrolling of the innermost loop of a dot
    "vector_bits": 1024,  # width of a vector register
    "prefetch_bytes": 65536,  # prefetch distance of streamed operands
}

# What every backend of every supported Triton accepts, should a GPU backend not be installed.
_GPU_DEFAULTS: dict[str, Any] = {
    "num_warps": 4,
    "num_ctas": 1,
    "num_stages": 3,
    "maxnreg": None,
    "ir_override": None,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
    "instrumentation_mode": "",
    "fpsan_homomorphic_casts": False,
    "waves_per_eu": 0,
    "matrix_instr_nonkdim": 0,
    "kpack": 1,
}


@dataclasses.dataclass(frozen=True)
class CodeOptions:
    """The options that can change the code; the lowering sees these and no others."""

    micro_m: int
    micro_n: int
    unroll: int
    vector_bits: int
    prefetch_bytes: int
    enable_fp_fusion: bool
    debug: bool
    sanitize_overflow: bool


class CPUOptions:
    """Every option of a compilation, as attributes. Triton reads `__dict__` and `hash()`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"options are frozen: {name} cannot be set")

    def __repr__(self) -> str:
        return f"CPUOptions({', '.join(f'{k}={v!r}' for k, v in sorted(self.__dict__.items()))})"

    def hash(self) -> str:
        # Everything: the cache keeps the metadata beside the code, and it holds every option.
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def code(self) -> CodeOptions:
        """Return the part that can change the code."""
        return CodeOptions(
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(CodeOptions)}
        )


def parse(given: dict[str, Any], arch: str) -> CPUOptions:
    """Return the options among a launch's keyword arguments, checked."""
    from triton import knobs

    # None means "not given", and lists are what JSON makes of tuples.
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    values = {**_gpu_defaults(), **dict.fromkeys(OWN, 0), **_fixed(arch)}
    values["enable_fp_fusion"] = knobs.language.default_fp_fusion
    values.update({name: given[name] for name in values if name in given and name not in _FIXED})
    if getattr(knobs.language, "force_disable_fp_fusion", False):
        values["enable_fp_fusion"] = False
    for name, largest in OWN.items():
        values[name] = _checked(name, values[name], largest)
    if not _is_power_of_two(values["num_warps"]):
        # Nothing here depends on it. A program that is wrong for a GPU fails as it does there.
        raise AssertionError(f"num_warps must be a power of 2, not {values['num_warps']!r}")
    return CPUOptions(values)


def _is_power_of_two(number: Any) -> bool:
    return isinstance(number, int) and number > 0 and number & (number - 1) == 0


def _checked(name: str, value: Any, largest: int) -> int:
    # A kernel may have a flag of the same name, which then arrives here too.
    if isinstance(value, bool):
        return 0
    powers = [0, *(128 << i for i in range(4))] if name == "vector_bits" else None
    if not isinstance(value, int) or not 0 <= value <= largest or (powers and value not in powers):
        allowed = (
            f"one of {', '.join(map(str, powers))}" if powers else f"an integer from 0 to {largest}"
        )
        raise ValueError(
            f"{name}={value!r}: expected {allowed} (0: the CPU backend chooses). "
            f"If {name} is an argument of the kernel, pass it by position or rename it."
        )
    return value


# What a caller cannot change, because it describes the backend.
_FIXED = ("arch", "backend_name", "warp_size", "supported_fp8_dtypes", "extern_libs")


def _fixed(arch: str) -> dict[str, Any]:
    return {
        "arch": arch,
        "backend_name": "cpu",
        "warp_size": 1,
        "supported_fp8_dtypes": ("fp8e4nv", "fp8e5"),
        "deprecated_fp8_dot_operand_dtypes": (),
        "default_dot_input_precision": "ieee",
        "allowed_dot_input_precisions": _dot_precisions(),
        "max_num_imprecise_acc_default": 0,
        "extern_libs": (),
        "debug": False,
        "sanitize_overflow": True,
    }


@functools.cache
def _dot_precisions() -> tuple[str, ...]:
    from triton._C.libtriton import ir

    return tuple(name.lower() for name in ir.INPUT_PRECISION.__members__)


@functools.cache
def _gpu_defaults() -> dict[str, Any]:
    """Return the options of the installed GPU backends, with their defaults."""
    defaults = dict(_GPU_DEFAULTS)
    for backend, options in (("amd", "HIPOptions"), ("nvidia", "CUDAOptions")):
        try:
            module = importlib.import_module(f"triton.backends.{backend}.compiler")
            fields = dataclasses.fields(getattr(module, options))
        except Exception:
            # A GPU backend that is absent or cannot be imported here has no options to offer.
            continue
        defaults.update(
            {
                field.name: None if field.default is dataclasses.MISSING else field.default
                for field in fields
            }
        )
    return defaults
