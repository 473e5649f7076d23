"""The writing side: values as JSON, with functions, modules and tensors in tables beside them.

A value that JSON knows stands for itself. Any other is an object whose "is" says what it is; the
functions that read them have the same names in `unpacker`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import os
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
import triton.language as tl
from triton.runtime.jit import JITCallable, JITFunction, TensorWrapper

from tritune.tuning.autotune.portable import functions
from tritune.tuning.autotune.portable.errors import PortableError
from tritune.tuning.autotune.portable.names import (
    Reads,
    import_name,
    is_shared,
    module_is_importable,
)
from tritune.tuning.autotune.portable.tensors import TensorFiles

FILE = "call.json"


class Packer:
    """Collects what a call needs, then writes it to a folder."""

    def __init__(self) -> None:
        self.tensors = TensorFiles()
        self._objects: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        #: Numbers are given by identity, so nothing that has one may be collected.
        self._kept: list[Any] = []

    def write(self, folder: str, roots: dict[str, Any]) -> None:
        """Write the packed values `roots`, and everything they refer to."""
        regions = self.tensors.write(folder)
        document = {"roots": roots, "objects": self._objects, "regions": regions}
        with open(os.path.join(folder, FILE), "w") as file:
            json.dump(document, file)

    def value(self, value: Any, where: str) -> Any:
        """Return the value as JSON; `where` tells the reader of an error what could not be sent."""
        kind = type(value)
        if kind in (type(None), bool, int, float, str):
            return value
        if kind in _PLAIN:
            return _PLAIN[kind](self, value, where)
        if isinstance(value, torch.Tensor):
            return self._once(
                value, lambda: {"is": "tensor", "view": self.tensors.view(value, where)}
            )
        if isinstance(value, JITCallable):
            return self._kernel(value, where)
        if isinstance(value, FunctionType):
            return self._function(value, where)
        if isinstance(value, ModuleType):
            return self._module(value, {}, where)
        if isinstance(value, enum.Enum):
            owner = self._imported(kind, where)
            return {"is": "member", "of": owner, "name": value.name}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            named = zip(kind._fields, value, strict=True)
            items = [self.value(item, f"{where}.{name}") for name, item in named]
            return {"is": "named_tuple", "of": self._tuple_class(kind, where), "items": items}
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            return self._tuple_class(value, where)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, where)
        return self._imported(value, where)

    def namespace(self, variables: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the number of a module's variables, and those that travel so far."""
        number = self._number(variables)
        if number is None:
            name = str(variables.get("__name__", "__main__"))
            entry: dict[str, Any] = {"is": "namespace", "name": name, "values": {}}
            number = self._add(variables, entry)
        values: dict[str, Any] = self._objects[number]["values"]
        return number, values

    def variables(self, source: dict[str, Any], reads: Reads, owner: str) -> int:
        """Send the variables of a module that are read, and of modules among them what is read."""
        number, values = self.namespace(source)
        for name, attributes in reads.items():
            value = source[name]
            where = f"{name}, which {owner} uses,"
            if isinstance(value, ModuleType):
                values[name] = self._module(value, attributes, where)
            elif name not in values:
                values[name] = self.value(value, where)
        return number

    def _once(self, thing: Any, describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        number = self._number(thing)
        if number is None:
            number = self._add(thing, describe())
        return {"is": "object", "number": number}

    def _number(self, thing: Any) -> int | None:
        return self._numbers.get(id(thing))

    def _add(self, thing: Any, entry: dict[str, Any]) -> int:
        self._kept.append(thing)
        self._objects.append(entry)
        self._numbers[id(thing)] = len(self._objects) - 1
        return len(self._objects) - 1

    def _kernel(self, kernel: Any, where: str) -> dict[str, Any]:
        """Return a Triton function by its code; by its name where its code refers to what cannot
        travel, and where every process has it anyway.
        """
        found = import_name(kernel)
        if found is not None and is_shared(found[0]):
            return _import(found)
        describe = functions.jit if isinstance(kernel, JITFunction) else functions.constexpr
        by_name = _import(found) if found is not None else None
        return self._recursive(kernel, lambda: describe(self, kernel), by_name)

    def _function(self, function: Any, where: str) -> dict[str, Any]:
        found = import_name(function)
        if found is not None:
            return _import(found)
        return self._recursive(function, lambda: functions.python(self, function))

    def _recursive(
        self,
        thing: Any,
        describe: Callable[[], dict[str, Any]],
        otherwise: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """As `_once`, for what may refer to itself, with another way where that fails."""
        number = self._number(thing)
        if number is None:
            number = self._add(thing, {})
            try:
                self._objects[number].update(describe())
            except PortableError:
                if otherwise is None:
                    del self._numbers[id(thing)]
                    raise
                self._objects[number].update(otherwise)
        return {"is": "object", "number": number}

    def _module(self, module: ModuleType, reads: Reads, where: str) -> dict[str, Any]:
        """Return a module by its name if every process has it, else by those of its variables that
        are read; by its name again where that is not known.
        """
        name = module.__name__
        if is_shared(name) and module_is_importable(module):
            return {"is": "module", "name": name}
        try:
            if not reads:
                raise PortableError(f"{where} is the module {name}")
            known = {each: more for each, more in reads.items() if hasattr(module, each)}
            number = self.variables(vars(module), known, name)
        except PortableError:
            if not module_is_importable(module):
                raise
            return {"is": "module", "name": name}
        return {"is": "object", "number": number}

    def _tuple_class(self, kind: type[Any], where: str) -> dict[str, Any]:
        found = import_name(kind)
        if found is not None:
            return _import(found)
        fields = list(kind._fields)
        described = {"is": "tuple_class", "name": kind.__name__, "fields": fields}
        return self._once(kind, lambda: {**described, "module": kind.__module__})

    def _dataclass(self, value: Any, where: str) -> dict[str, Any]:
        fields = {
            field.name: self.value(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init
        }
        return {"is": "dataclass", "of": self._imported(type(value), where), "fields": fields}

    def _imported(self, value: Any, where: str) -> dict[str, Any]:
        found = import_name(value)
        if found is None:
            kind = type(value)
            what = f"{kind.__module__}.{kind.__qualname__}"
            if isinstance(value, type):
                what = f"class {value.__module__}.{value.__qualname__}, which cannot be imported"
            raise PortableError(f"{where} is of a kind that cannot be sent to a process: {what}")
        return _import(found)


def _import(found: tuple[str, int]) -> dict[str, Any]:
    return {"is": "import", "name": found[0], "wrappers": found[1]}


def _items(is_: str) -> Callable[[Packer, Any, str], dict[str, Any]]:
    def pack(packer: Packer, value: Any, where: str) -> dict[str, Any]:
        items = [packer.value(each, f"{where}[{number}]") for number, each in enumerate(value)]
        return {"is": is_, "items": items}

    return pack


def _mapping(packer: Packer, value: dict[Any, Any], where: str) -> dict[str, Any]:
    items = [
        [packer.value(name, where), packer.value(each, f"{where}[{name!r}]")]
        for name, each in value.items()
    ]
    return {"is": "dict", "items": items}


def _partial(packer: Packer, value: Any, where: str) -> dict[str, Any]:
    return {
        "is": "partial",
        "function": packer.value(value.func, where),
        "args": [packer.value(each, where) for each in value.args],
        "kwargs": {name: packer.value(each, where) for name, each in value.keywords.items()},
    }


def _reinterpreted(packer: Packer, value: Any, where: str) -> dict[str, Any]:
    base, dtype = packer.value(value.base, where), packer.value(value.dtype, where)
    return {"is": "reinterpreted", "base": base, "dtype": dtype}


_PLAIN: dict[type[Any], Callable[[Packer, Any, str], dict[str, Any]]] = {
    tuple: _items("tuple"),
    list: _items("list"),
    torch.Size: _items("size"),
    dict: _mapping,
    torch.dtype: lambda _, value, __: {
        "is": "torch_dtype",
        "name": str(value).removeprefix("torch."),
    },
    torch.device: lambda _, value, __: {"is": "device", "name": str(value)},
    tl.dtype: lambda _, value, __: {"is": "triton_dtype", "name": value.name},
    tl.constexpr: lambda packer, value, where: {
        "is": "constexpr",
        "value": packer.value(value.value, where),
    },
    functools.partial: _partial,
    TensorWrapper: _reinterpreted,
}
