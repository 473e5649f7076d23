"""Functions as data: compiled code, source, and what the code refers to.

Python's code objects are sent as they are (`marshal`), because the reader is the same Python; that
needs no source, and works for lambdas and closures alike. Triton compiles from the source text, so
its functions carry that too.
"""

from __future__ import annotations

import base64
import linecache
import marshal
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from tritune.tuning.autotune.portable.errors import PortableError
from tritune.tuning.autotune.portable.names import (
    Reads,
    global_names,
    import_name,
    imported,
    read_names,
)

if TYPE_CHECKING:
    from tritune.tuning.autotune.portable.packer import Packer

#: What Triton notes of a function's place in its file. The place is part of the cache key and of
#: the debug information, so the copy says what the original says. Not all versions have them all.
_PLACE = (
    "raw_src",
    "starting_line_number",
    "file_name",
    "def_file_line_number",
    "def_file_col_number",
)


def python(packer: Packer, function: Any) -> dict[str, Any]:
    """Return a function that Python runs: a hook, a grid."""
    known = function.__globals__
    reads: Reads = {name: {} for name in global_names(function.__code__) if name in known}
    return {"is": "function", **_function(packer, function, reads)}


def constexpr(packer: Packer, function: Any) -> dict[str, Any]:
    """Return a `constexpr_function`: Python that Triton runs while it compiles."""
    return {
        "is": "constexpr_function",
        "fn": python(packer, function.fn),
        "source": function.src,
        "place": _place(function),
        "cache_key": function.cache_key,
    }


def jit(packer: Packer, kernel: Any) -> dict[str, Any]:
    """Return a `triton.jit` function."""
    owner = import_name(type(kernel))
    if owner is None:
        raise PortableError(f"{kernel.__name__} is of class {type(kernel).__qualname__}")
    annotations = {param.name: param.annotation for param in kernel.params if param.annotation}
    return {
        "is": "jit",
        "class": owner[0],
        "fn": {**_function(packer, kernel.fn, _reads(kernel)), "annotations": annotations},
        "source": kernel.src,
        "place": _place(kernel),
        "cache_key": kernel.cache_key,
        "options": {
            "version": packer.value(kernel.version, "version"),
            "do_not_specialize": list(kernel.do_not_specialize),
            "do_not_specialize_on_alignment": list(kernel.do_not_specialize_on_alignment),
            "debug": kernel.debug,
            "noinline": kernel.noinline,
        },
        # It names the binary's entry; `launch_metadata` is for profilers, and stays behind.
        "repr": packer.value(kernel._repr, f"repr of {kernel.__name__}"),
    }


def _reads(kernel: Any) -> Reads:
    """Return the globals that a kernel reads.

    A name that is also assigned in the kernel is a local variable. Triton's cache key takes it for
    a global while it has not seen the assignment, but only a few kinds of values enter the key.
    """
    from triton.language.core import constexpr as constant
    from triton.runtime.jit import JITCallable

    reads, assigned = read_names(kernel.parse())
    found: Reads = {}
    for name, attributes in reads.items():
        if name not in kernel.__globals__:
            continue
        if name in assigned and not isinstance(kernel.__globals__[name], (JITCallable, constant)):
            continue
        found[name] = attributes
    return found


def _function(packer: Packer, function: Any, reads: Reads) -> dict[str, Any]:
    owner = function.__name__
    code = function.__code__
    cells = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            continue  # assigned later, or deleted: the copy's cell is empty too
        cells[name] = packer.value(content, f"{name}, which {owner} uses,")
    return {
        "code": base64.b64encode(marshal.dumps(code)).decode(),
        "namespace": packer.variables(function.__globals__, reads, owner),
        "name": owner,
        "qualname": function.__qualname__,
        "module": function.__module__,
        "defaults": packer.value(function.__defaults__, f"a default value of {owner}"),
        "kwdefaults": packer.value(function.__kwdefaults__, f"a default value of {owner}"),
        "cells": cells,
    }


def _place(function: Any) -> dict[str, Any]:
    return {name: vars(function)[name] for name in _PLACE if name in vars(function)}


def make_function(
    described: dict[str, Any],
    namespace: dict[str, Any],
    register: Callable[[Any], None],
    value: Callable[[Any], Any],
) -> Any:
    """Return the function again; `register` is told of it before what it refers to is made."""
    code = marshal.loads(base64.b64decode(described["code"]))
    cells = {name: CellType() for name in code.co_freevars}
    function = FunctionType(
        code, namespace, described["name"], value(described["defaults"]), tuple(cells.values())
    )
    function.__kwdefaults__ = value(described["kwdefaults"])
    function.__qualname__ = described["qualname"]
    function.__module__ = described["module"]
    function.__annotations__ = described.get("annotations", {})
    register(function)
    for name, content in described["cells"].items():
        cells[name].cell_contents = value(content)
    return function


def make_jit(described: dict[str, Any], function: Any, value: Callable[[Any], Any]) -> Any:
    """Return the Triton function around a function that `make_function` made."""
    owner = imported(described["class"])
    options = {**described["options"], "repr": value(described["repr"])}
    return _wrapped(described, function, lambda: owner(function, **options))


def make_constexpr(described: dict[str, Any], function: Any) -> Any:
    from triton.runtime.jit import constexpr_function

    return _wrapped(described, function, lambda: constexpr_function(function))


def _wrapped(described: dict[str, Any], function: Any, wrap: Callable[[], Any]) -> Any:
    """Have Triton wrap the function; it looks for the source, so there must be a file for it."""
    code = function.__code__
    file_name = f"<{described['fn']['qualname']} of another process>"
    lines = described["source"].splitlines(keepends=True)
    linecache.cache[file_name] = (len(described["source"]), None, lines, file_name)
    function.__code__ = code.replace(co_filename=file_name, co_firstlineno=1)
    try:
        wrapped = wrap()
    finally:
        function.__code__ = code
        del linecache.cache[file_name]
    wrapped._unsafe_update_src(described["source"])
    for name, place in described["place"].items():
        setattr(wrapped, name, place)
    # Not computed anew: see `digest` for what the original's may depend on.
    wrapped.hash = described["cache_key"]
    return wrapped
