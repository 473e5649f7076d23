"""What a Triton function is, as one number: its source, the constants it reads, all that it calls.

Triton's own `cache_key` will not do. In Triton 3.7 it depends on what the process has hashed
before: a constant that a helper function reads is part of the caller's key only if the helper's
key was computed first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from triton.language.core import constexpr
from triton.runtime.jit import BoundConstexprFunction, JITCallable

from tritune.tuning.autotune.portable.names import Reads, is_shared, read_names


def code_digest(function: Any) -> str:
    """Return the same in every process, whatever it did before; where in its file it is does not
    count.
    """
    digest = hashlib.sha256()
    for part in _parts(function, {}):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _parts(function: Any, seen: dict[int, int]) -> Iterator[str]:
    if isinstance(function, BoundConstexprFunction):
        function = function.__func__
    if id(function) in seen:
        yield f"function {seen[id(function)]}"
        return
    seen[id(function)] = len(seen)
    yield function.src
    yield f"noinline={bool(getattr(function, 'noinline', False))}"
    scope = function.get_capture_scope()
    reads, assigned = read_names(function.parse())
    for name in sorted(reads.keys() & scope.keys()):
        value = scope[name]
        if name not in assigned or isinstance(value, (JITCallable, constexpr)):
            yield from _value_parts(name, value, reads[name], seen)


def _value_parts(name: str, value: Any, reads: Reads, seen: dict[int, int]) -> Iterator[str]:
    if isinstance(value, ModuleType):
        # Of Triton itself, the version counts.
        if not is_shared(value.__name__):
            for attribute in sorted(reads):
                inner = getattr(value, attribute, None)
                yield from _value_parts(f"{name}.{attribute}", inner, reads[attribute], seen)
    elif isinstance(value, JITCallable):
        if not is_shared(str(getattr(value, "__module__", ""))):
            yield name
            yield from _parts(value, seen)
    elif isinstance(value, constexpr):
        yield f"{name}={value.value!r}"
    elif isinstance(value, (bool, int, float, str)):
        yield f"{name}={value!r}"
