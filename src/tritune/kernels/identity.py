"""Identify the code that a result was measured with: a result holds for that code and no other.

Comments and moved lines must not orphan what users have stored, nor must a rename that leaves the
generated code as it was. So two things are named by hand, and tests see to it that they are: the
version of the CPU backend's code generation (`cpu/compiler.py`), and what each kernel's device code
is called in stored results (`released.json`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritune.kernels.kernel import Kernel
    from tritune.targets.target import Target


@functools.lru_cache(maxsize=1024)
def identity(kernel: Kernel, target: Target) -> str:
    """Digest everything that makes a kernel's code for a target, but not its configs.

    It covers the Triton functions with every function that they call, Triton's version, and the
    compiler behind it: ptxas, or tritune's own CPU backend with the CPU's features. Adding a config
    to the space changes nothing; changing a helper function does.
    """
    import triton

    parts = [*code_names(kernel, triton.__version__), triton.__version__, compiler_identity(target)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def compiler_identity(target: Target) -> str:
    """Return what results depend on of a target's compiler; no device is needed."""
    backend = _backend(target)
    # The CPU backend tells what results depend on from what its cached objects depend on.
    return str(getattr(backend, "codegen_identity", backend.hash)())


@functools.cache
def cache_identity(target: Target) -> str:
    """Return what Triton's cache entries depend on of a target's compiler."""
    return str(_backend(target).hash())


def _backend(target: Target) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    # The third is how many lanes run in step, which follows from the architecture.
    return make_backend(GPUTarget(target.family, target.arch, 32))


def code_names(kernel: Kernel, triton_version: str) -> list[str]:
    """Return what stands for a kernel's device code in its identity.

    Released code keeps the names under which its first results were stored: the cache keys that
    Triton gave it then. Code that was changed since is named by its digest.
    """
    if not all(hasattr(function, "src") for function in kernel.functions):
        # They stand for functions of users' programs, whose own digest they have.
        return [function.cache_key for function in kernel.functions]
    digest = code_digest(kernel.functions)
    released = released_code().get(kernel.name)
    if released is None or released["digest"] != digest:
        return [digest]
    names: Mapping[str, list[str]] = released["names"]
    return names.get(triton_version) or next(iter(names.values()))


def code_digest(functions: Iterable[Any]) -> str:
    """Digest Triton functions and all that they call.

    Not by Triton's cache keys: these contain line numbers, and depend on what was compiled before.
    """
    parts = (part for function in functions for part in _parts(function, set()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _parts(function: Any, seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    lines = (line.rstrip() for line in function.src.splitlines())
    yield "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    yield f"noinline={bool(getattr(function, 'noinline', False))}"
    names = function.fn.__code__.co_names
    scope: dict[str, Any] = dict(function.fn.__globals__)
    for module in [scope[name] for name in names if isinstance(scope.get(name), ModuleType)]:
        if not module.__name__.startswith("triton"):  # of Triton itself, the version counts
            scope.update((name, getattr(module, name)) for name in names if hasattr(module, name))
    for name in sorted(names):
        value: Any = getattr(scope.get(name), "value", scope.get(name))  # of a constexpr
        if isinstance(value, bool | int | float | str):
            yield f"{name}={value!r}"
        elif hasattr(value, "src") and not value.fn.__module__.startswith("triton."):
            yield from _parts(value, seen)


@functools.cache
def released_code() -> Any:
    """Read what each kernel's device code is called, and the digest of the code that it is."""
    return json.loads(Path(__file__).with_name("released.json").read_text())
