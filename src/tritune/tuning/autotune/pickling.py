"""Pickles of kernels and the arguments of calls, for worker processes.

cloudpickle sends functions that no other process could import: those of a script or a notebook,
and closures. Three things are different here:

- A Triton function travels as its code and source, with what it reads. Its module is not imported
  in the worker: a script must not run twice. The copy has the cache key of the original, so what a
  worker compiles is in the program's cache too.
- Tensors are stored elsewhere, so that a process that only compiles need not read them.
- A module counts as importable only if another process that imports its name gets the same file.

Unpickling runs code: it is for files that this user's own processes have written.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import linecache
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import cloudpickle
from triton.runtime.jit import JITCallable, JITFunction

from tritune.errors import TrituneError
from tritune.tuning.autotune.digest import Reads, global_reads, is_shared

#: What Triton notes of a function's place in its file. The place is part of the cache key and of
#: the debug information, so the copy has the original's. Not all versions of Triton have them all.
_PLACE = (
    "raw_src",
    "starting_line_number",
    "file_name",
    "def_file_line_number",
    "def_file_col_number",
)
#: The arguments of `triton.jit`. `launch_metadata` is for profilers, and stays behind.
_OPTIONS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")

#: The modules that cloudpickle sends by value are the same for all threads.
_registry_lock = threading.RLock()

#: Returns a reference to an object that is stored elsewhere, and None for any other.
PersistentId: TypeAlias = "Callable[[Any], Any]"


class TransferError(TrituneError):
    """Something that a call needs cannot be sent to a worker process."""


def dumps(value: Any, persistent_id: PersistentId) -> bytes:
    """Return the pickled value; TransferError says what of it cannot be sent.

    Kernels whose code refers to such a thing are sent by name, where they have one.
    """
    with _registry_lock:
        try:
            return _dumps(value, persistent_id, by_name=False)
        except Exception:
            return _dumps(value, persistent_id, by_name=True)


def loads(data: bytes, persistent_load: Callable[[Any], Any]) -> Any:
    """Return the value that was pickled; `persistent_load` finds what is stored elsewhere."""
    unpickler = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = persistent_load  # type: ignore[method-assign]
    return unpickler.load()


def _dumps(value: Any, persistent_id: PersistentId, by_name: bool) -> bytes:
    file = io.BytesIO()
    pickler = _Pickler(file, persistent_id, by_name)
    try:
        pickler.dump(value)
    except Exception as error:
        raise TransferError(f"{pickler.describe_last()} cannot be sent: {error}") from error
    finally:
        for module in pickler.by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, persistent_id: PersistentId, by_name: bool) -> None:
        super().__init__(file)
        self._persistent_id, self._by_name = persistent_id, by_name
        self._last: Any = None
        self._functions: list[FunctionType] = []
        #: The Triton functions around Python functions.
        self._kernels: dict[int, JITFunction[Any]] = {}
        #: Modules that are sent in part, and their copies.
        self._copies: dict[str, ModuleType] = {}
        #: Modules whose functions and classes cloudpickle would send by name, in vain.
        self.by_value: list[ModuleType] = []

    def describe_last(self) -> str:
        """Return a description of the object at which the pickler is."""
        for function in reversed(self._functions):
            try:
                used = inspect.getclosurevars(function)
            except ValueError:  # a variable of its closure has no value yet
                continue
            for name, value in {**used.globals, **used.nonlocals}.items():
                if value is self._last:
                    return f"{name}, which {function.__name__} uses,"
        kind = type(self._last)
        return f"a {kind.__module__}.{kind.__qualname__} of the call"

    def persistent_id(self, value: Any) -> Any:
        self._last = value
        return self._persistent_id(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, JITCallable) and hasattr(value, "fn"):
            return self._reduce_kernel(value)
        if isinstance(value, _ModulePart):
            return self._reduce_part(value)
        if isinstance(value, FunctionType):
            self._functions.append(value)
        if isinstance(value, ModuleType):
            if self._copies.get(value.__name__) is value:
                return ModuleType, (value.__name__,)
            if value.__name__ in sys.modules and not _is_importable(value):
                raise pickle.PicklingError(f"no other process can import {value.__name__}")
        elif isinstance(value, (FunctionType, type)):
            self._send_by_value_unless_importable(sys.modules.get(str(value.__module__)))
        kernel = self._kernels.get(id(value))
        if kernel is None:
            return super().reducer_override(value)
        # Never by name, because that may find the function without the kernel around it. With
        # globals of its own, because other functions of its file may read more of a module.
        make, (code, variables, *rest), state, *others = self._dynamic_function_reduce(value)
        self._keep_what_is_read(state[1], kernel)
        return (make, (code, dict(variables), *rest), state, *others)

    def _reduce_kernel(self, kernel: Any) -> Any:
        name = _import_name(kernel)
        if name is not None and (self._by_name or is_shared(name[0])):
            return _imported, name
        state = {
            "fn": kernel.fn,
            "source": kernel.src,
            "place": {name: vars(kernel)[name] for name in _PLACE if name in vars(kernel)},
            "cache_key": kernel.cache_key,
            "options": {},
        }
        if isinstance(kernel, JITFunction):
            self._kernels[id(kernel.fn)] = kernel
            # `repr` names the binary's entry.
            options = {name: getattr(kernel, name) for name in _OPTIONS}
            state["options"] = {**options, "repr": kernel._repr}
        return _new, (type(kernel),), state, None, None, _restore_kernel

    def _keep_what_is_read(self, attributes: dict[str, Any], kernel: Any) -> None:
        """Take out of a kernel's Python function what Triton does not look at."""
        attributes["__globals__"] = {
            name: self._part(kernel.__globals__[name], reads)
            for name, reads in global_reads(kernel).items()
            if name in kernel.__globals__
        }
        attributes["__annotations__"] = {
            param.name: param.annotation for param in kernel.params if param.annotation
        }
        attributes["_cloudpickle_submodules"] = []

    def _part(self, value: Any, reads: Reads) -> Any:
        """Return what is sent of a global of a kernel, of which it reads these attributes."""
        if not isinstance(value, ModuleType) or not reads or self._by_name:
            return value
        whole = is_shared(value.__name__) and _is_importable(value)
        return value if whole else _ModulePart(value, reads)

    def _reduce_part(self, part: _ModulePart) -> Any:
        variables = vars(part.module)
        copy = self._copies.setdefault(part.module.__name__, ModuleType(part.module.__name__))
        read = {
            name: self._part(variables[name], reads)
            for name, reads in part.reads.items()
            if name in variables
        }
        return _same, (copy,), read, None, None, _add_variables

    def _send_by_value_unless_importable(self, module: ModuleType | None) -> None:
        """Have cloudpickle send functions and classes of a module by value if need be."""
        if module is None or is_shared(module.__name__):
            return
        registered = module.__name__ in cloudpickle.list_registry_pickle_by_value()
        if not registered and not _is_importable(module):
            cloudpickle.register_pickle_by_value(module)
            self.by_value.append(module)


class _ModulePart:
    """Those variables of a module that some kernel reads."""

    def __init__(self, module: ModuleType, reads: Reads) -> None:
        self.module, self.reads = module, reads


def _new(kind: Any) -> Any:
    # Made before what the function refers to, which may be the function itself.
    return kind.__new__(kind)


def _same(module: ModuleType) -> ModuleType:
    return module


def _add_variables(module: ModuleType, variables: Mapping[str, Any]) -> None:
    vars(module).update(variables)


def _restore_kernel(kernel: Any, state: Mapping[str, Any]) -> None:
    """Have Triton wrap the function; it looks for the source, so there must be a file for it."""
    function, source = state["fn"], state["source"]
    code = function.__code__
    file_name = f"<{function.__qualname__} of another process>"
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    function.__code__ = code.replace(co_filename=file_name, co_firstlineno=1)
    try:
        kernel.__init__(function, **state["options"])
    finally:
        function.__code__ = code
        del linecache.cache[file_name]
    kernel._unsafe_update_src(source)
    for name, place in state["place"].items():
        setattr(kernel, name, place)
    # Not computed anew: see `digest` for what the original's may depend on.
    kernel.hash = state["cache_key"]


def _is_importable(module: ModuleType) -> bool:
    """Return whether another process that imports the module's name gets this module's file."""
    name = module.__name__
    if name == "__main__" or sys.modules.get(name) is not module:
        return False
    parent = sys.modules.get(name.rpartition(".")[0])
    path = getattr(parent, "__path__", None)
    if "." in name and (path is None or parent is None or not _is_importable(parent)):
        return False
    # Not importlib.util.find_spec: it believes whoever has put the module into sys.modules.
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    spec = next((each for each in specs if each is not None), None)
    file = getattr(module, "__file__", None)
    return spec is not None and (file is None or spec.origin in (file, "built-in", "frozen"))


def _import_name(kernel: Any) -> tuple[str, str, int] | None:
    """Return the module and the name of a kernel, and how many decorators are around it there;
    None where no other process could import it.
    """
    module = sys.modules.get(str(kernel.__module__))
    if module is None or "<" in kernel.__qualname__ or not _is_importable(module):
        return None
    for wrappers in range(8):
        try:
            if _imported(module.__name__, kernel.__qualname__, wrappers) is kernel:
                return module.__name__, kernel.__qualname__, wrappers
        except AttributeError:
            return None
    return None


def _imported(module: str, path: str, wrappers: int) -> Any:
    """Return what `_import_name` named."""
    found = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    for _ in range(wrappers):
        found = found.fn
    return found
