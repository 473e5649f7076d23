"""The reading side: makes again what `packer` wrote."""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import triton.language as tl
from triton.runtime.jit import TensorWrapper

from tritune.tuning.autotune.portable import functions
from tritune.tuning.autotune.portable.names import imported
from tritune.tuning.autotune.portable.packer import FILE
from tritune.tuning.autotune.portable.tensors import Placeholder, Regions


class Unpacker:
    """Reads a folder. Memory is read when the first tensor is asked for."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with open(os.path.join(folder, FILE)) as file:
            document = json.load(file)
        self.roots: dict[str, Any] = document["roots"]
        self._regions_described: list[dict[str, Any]] = document["regions"]
        self._described: list[dict[str, Any]] = document["objects"]
        self._made: dict[int, Any] = {}
        self._placeholders = False

    @functools.cached_property
    def regions(self) -> Regions:
        return Regions(self._folder, self._regions_described)

    def value(self, packed: Any) -> Any:
        """Return the value that was packed."""
        if not isinstance(packed, dict):
            return packed
        return _READ[packed["is"]](self, packed)

    def views(self, packed: Any) -> list[dict[str, Any]]:
        """Return the tensors in a packed value, as `Regions` knows them; those of functions are
        not.
        """
        if isinstance(packed, list):
            return [view for each in packed for view in self.views(each)]
        if not isinstance(packed, dict):
            return []
        if packed.get("is") == "object":
            described = self._described[packed["number"]]
            return [described["view"]] if described["is"] == "tensor" else []
        return [view for each in packed.values() for view in self.views(each)]

    def without_memory(self, packed: Any) -> Any:
        """As `value`, with placeholders for tensors: enough to compile for."""
        self._placeholders = True
        try:
            return self.value(packed)
        finally:
            self._placeholders = False

    def _object(self, packed: dict[str, Any]) -> Any:
        number = packed["number"]
        described = self._described[number]
        if described["is"] == "tensor" and self._placeholders:
            view = described["view"]
            return Placeholder(view, self._regions_described[view["region"]])
        function = described.get("fn", described)
        if number not in self._made and "namespace" in function:
            # What is in there may refer to this object, and so make it.
            self._object({"number": function["namespace"]})
        if number not in self._made:
            make = _MAKE.get(described["is"])
            self._made[number] = make(self, number, described) if make else self.value(described)
        return self._made[number]

    def _namespace(self, number: int, described: dict[str, Any]) -> ModuleType:
        module = ModuleType(described["name"])
        # First, because what is in it refers to it.
        self._made[number] = module
        for name, packed in described["values"].items():
            vars(module)[name] = self.value(packed)
        return module

    def _function(self, number: int, described: dict[str, Any]) -> Any:
        return self._plain_function(
            described, lambda function: self._made.__setitem__(number, function)
        )

    def _jit(self, number: int, described: dict[str, Any]) -> Any:
        def wrap(function: Any) -> None:
            self._made[number] = functions.make_jit(described, function, self.value)

        self._plain_function(described["fn"], wrap)
        return self._made[number]

    def _constexpr_function(self, number: int, described: dict[str, Any]) -> Any:
        def wrap(function: Any) -> None:
            self._made[number] = functions.make_constexpr(described, function)

        self._plain_function(described["fn"], wrap)
        return self._made[number]

    def _plain_function(self, described: dict[str, Any], register: Callable[[Any], None]) -> Any:
        namespace = self._object({"number": described["namespace"]})
        return functions.make_function(described, vars(namespace), register, self.value)

    def _tensor(self, number: int, described: dict[str, Any]) -> torch.Tensor:
        return self.regions.tensor(described["view"])

    def _tuple_class(self, number: int, described: dict[str, Any]) -> Any:
        name, fields, module = described["name"], described["fields"], described["module"]
        return namedtuple(name, fields, module=module)

    def items(self, packed: dict[str, Any]) -> list[Any]:
        return [self.value(item) for item in packed["items"]]

    def fields(self, packed: dict[str, Any]) -> dict[str, Any]:
        return {name: self.value(each) for name, each in packed.items()}

    def _partial(self, packed: dict[str, Any]) -> Any:
        args = [self.value(each) for each in packed["args"]]
        function = self.value(packed["function"])
        return functools.partial(function, *args, **self.fields(packed["kwargs"]))


_MAKE: dict[str, Callable[[Unpacker, int, dict[str, Any]], Any]] = {
    "namespace": Unpacker._namespace,
    "function": Unpacker._function,
    "jit": Unpacker._jit,
    "constexpr_function": Unpacker._constexpr_function,
    "tensor": Unpacker._tensor,
    "tuple_class": Unpacker._tuple_class,
}

_READ: dict[str, Callable[[Unpacker, dict[str, Any]], Any]] = {
    "object": Unpacker._object,
    "import": lambda _, packed: imported(packed["name"], packed["wrappers"]),
    "module": lambda _, packed: importlib.import_module(packed["name"]),
    "tuple": lambda reader, packed: tuple(reader.items(packed)),
    "list": lambda reader, packed: reader.items(packed),
    "size": lambda reader, packed: torch.Size(reader.items(packed)),
    "dict": lambda reader, packed: {
        reader.value(name): reader.value(each) for name, each in packed["items"]
    },
    "named_tuple": lambda reader, packed: reader.value(packed["of"])(*reader.items(packed)),
    "member": lambda reader, packed: reader.value(packed["of"])[packed["name"]],
    "dataclass": lambda reader, packed: reader.value(packed["of"])(
        **reader.fields(packed["fields"])
    ),
    "torch_dtype": lambda _, packed: getattr(torch, packed["name"]),
    "triton_dtype": lambda _, packed: tl.dtype(packed["name"]),
    "device": lambda _, packed: torch.device(packed["name"]),
    "constexpr": lambda reader, packed: tl.constexpr(reader.value(packed["value"])),
    "partial": Unpacker._partial,
    "reinterpreted": lambda reader, packed: TensorWrapper(
        reader.value(packed["base"]), reader.value(packed["dtype"])
    ),
}
