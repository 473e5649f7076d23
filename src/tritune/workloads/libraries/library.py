"""The libraries that ops are compared with: torch, and CPU vendors' plug-ins for torch.

A plug-in is a backend of `torch.compile`. It compiles torch's call for an op, with weights as
parameters and the graph frozen: preparing the weights is not in the time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch.utils import _pytree as pytree

from tritune.errors import TrituneError
from tritune.workloads.workload import Inputs, Vendors, Workload

#: The name of torch's own call compiled by torch.
COMPILED = "compiled"


@dataclass(frozen=True)
class Library:
    """Code that computes what ops do, which may be installed or not."""

    name: str
    #: Returns its calls for a workload's inputs, by name.
    offers: Callable[[Workload, Inputs], Vendors]
    #: Returns why it cannot be used in this process; None if it can.
    missing: Callable[[], str | None] = lambda: None
    #: The types of devices that it knows.
    devices: tuple[str, ...] = ("cpu",)
    #: True for code that torch does not come with.
    plug_in: bool = False


def usable(device: torch.device) -> list[Library]:
    """Return the libraries that can be used here, for calls on a device."""
    known = [library for library in LIBRARIES.values() if device.type in library.devices]
    return [library for library in known if library.missing() is None]


def broken() -> list[str]:
    """Return why libraries that are installed cannot be used."""
    installed = [name for name in LIBRARIES if importlib.util.find_spec(name) is not None]
    reasons = (LIBRARIES[name].missing() for name in installed)
    return [reason for reason in reasons if reason is not None]


def library_named(name: str, device: torch.device) -> Library:
    """Return the library of this name, or raise TrituneError, which says how to install it."""
    library = LIBRARIES[name]
    if device.type not in library.devices:
        raise TrituneError(f"{name} has nothing for {device.type}")
    reason = library.missing()
    if reason is not None:
        raise TrituneError(reason)
    return library


def vendors(
    workload: Workload, inputs: Inputs, libraries: Sequence[Library]
) -> tuple[Vendors, dict[str, str]]:
    """Return the libraries' calls for the same arguments, and why libraries have failed.

    Calls are named after library and function. A library that fails does not stop the others.
    """
    found: Vendors = {}
    failed = {}
    for library in libraries:
        try:
            offered = library.offers(workload, inputs)
        except Exception as error:
            failed[library.name] = in_a_line(error)
        else:
            found |= {f"{library.name} {name}": call for name, call in offered.items()}
    return found, failed


def in_a_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def assisted(workload: Workload, vendor: str) -> bool:
    """Return whether a part of this function's work was done beforehand."""
    return vendor.split(" ", 1)[1] in workload.assisted


def takes_long(vendor: str) -> bool:
    """Return whether a C++ compiler generates this function when it is first called."""
    return vendor == f"torch {COMPILED}"


class Compiled:
    """A call that a backend of `torch.compile` compiles when it is first made."""

    def __init__(
        self, call: Callable[[], Any], backend: str, options: dict[str, Any] | None = None
    ) -> None:
        self._call: Callable[[], Any] = torch.compile(
            call, backend=backend, dynamic=False, options=options
        )
        self._compiled = False

    def __call__(self) -> Any:
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self()
        if self._compiled:
            return self._call()
        # A plug-in that sets torch's own compiler up for itself does so for this call only.
        with inductor_config.patch(freezing=True, joint_custom_post_pass=None), _quietly():
            result = self.first()
        self._compiled = True
        return result

    def first(self) -> Any:
        """Compile, and make the call."""
        return self._call()


def _torch(workload: Workload, inputs: Inputs) -> Vendors:
    found = workload.offers(inputs)
    # torch's fused attention stays what it is.
    worth = [name for name in found if name in workload.compilable and "sdpa" not in name]
    if worth and _cxx_compiler():
        found[COMPILED] = Compiled(found[worth[0]], "inductor")
    return found


def _cxx_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def _zentorch(workload: Workload, inputs: Inputs) -> Vendors:
    return {name: Compiled(call, "zentorch") for name, call in _for_plug_in(workload, inputs)}


class _OpenVino(Compiled):
    """Raises where OpenVINO silently leaves a graph to torch's own compiler."""

    def first(self) -> Any:
        execute = importlib.import_module("openvino.frontend.pytorch.torchdynamo.execute")
        before = len(execute.compiled_cache)
        result = super().first()
        if len(execute.compiled_cache) == before:
            raise TrituneError("OpenVINO leaves this to torch's compiler")
        return result


def _openvino(workload: Workload, inputs: Inputs) -> Vendors:
    # Otherwise it computes in bfloat16 where a CPU is faster at that.
    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(torch.get_num_threads()),
    }
    # Needed for it to see which weights are frozen.
    options = {"aot_autograd": True, "config": config}
    return {
        name: _OpenVino(call, "openvino", options) for name, call in _for_plug_in(workload, inputs)
    }


def _for_plug_in(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the calls worth compiling, on copies: plug-ins may rearrange weights in place."""
    for name, call in workload.offers(pytree.tree_map_only(torch.Tensor, _copy, inputs)).items():
        if name in workload.compilable:
            yield name, call


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides and storage."""
    storage: Any = tensor.untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage.clone(), tensor.storage_offset(), tensor.size(), tensor.stride())


@functools.cache
def _import_failure(name: str, module: str, requirement: str) -> str | None:
    """Return why a plug-in cannot be used: it is not installed, or its import fails."""
    if importlib.util.find_spec(name) is None:
        return f"{name} is not installed: pip install '{requirement}'"
    try:
        with _quietly():
            importlib.import_module(module)
    except Exception as error:
        return f"{name} cannot be used, its import fails: {type(error).__name__}: {error}"
    return None


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings and logs: whatever matters becomes an exception or a wrong result."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _plug_in(name: str, offers: Any, module: str, requirement: str) -> Library:
    missing = functools.partial(_import_failure, name, module, requirement)
    return Library(name, offers, missing, plug_in=True)


#: zentorch is made for one minor version of torch each.
_ZENTORCH = "zentorch~=" + ".".join(torch.__version__.split(".")[:2]) + ".0"

#: By name. To add one, write a function that returns its calls, and list it here.
LIBRARIES: Mapping[str, Library] = {
    library.name: library
    for library in (
        Library("torch", _torch, devices=("cpu", "cuda")),
        _plug_in("zentorch", _zentorch, "zentorch", _ZENTORCH),
        _plug_in("openvino", _openvino, "openvino.torch", "openvino"),
    )
}
