"""Registration of ops with torch: opaque to its compilers, with fake kernels for shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tritune.ops.call.batching import MakeRule
from tritune.ops.call.checks import Check

_torch_library: Any = torch.library  # without its types: half of its functions have none
_torch_c: Any = torch._C
_LIBRARY = _torch_library.Library("tritune", "DEF")

_KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor, torch.nn.Parameter),
    "float": (float,),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}


def register(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any] = lambda *_: None,
    vmap: MakeRule | None = None,
) -> Callable[..., Any]:
    """Define `tritune::<schema>` and return a function that calls it.

    `run` gets real tensors of one device, which is current while it runs; its first argument is
    one of them. `fake` allocates results with the same shapes, dtypes and strides; without it, the
    op returns nothing. `vmap` makes a rule for torch.vmap.
    """
    name = schema.split("(")[0]
    run = _on_its_device(run)
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _torch_library.register_fake(f"tritune::{name}", fake, lib=_LIBRARY)
    overload: Callable[..., Any] = getattr(torch.ops.tritune, name).default
    _LIBRARY.impl(name, _dispatched(overload, run), "Autograd", with_keyset=True)
    if vmap is not None:
        _torch_library.register_vmap(f"tritune::{name}", vmap(overload), lib=_LIBRARY)
    return _direct(overload, run)


def _direct(overload: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Bypass torch's dispatcher, which takes longer than many a kernel, where nothing differs.

    Arguments that torch would convert, refuse or dispatch elsewhere go through the dispatcher.
    """
    schema = overload._schema.arguments
    expected = tuple(_kinds(str(argument.type)) for argument in schema)
    tensors = [place for place, kinds in enumerate(expected) if torch.Tensor in kinds]
    written = [place for place, argument in enumerate(schema) if argument.is_write]

    def call(*arguments: Any) -> Any:
        if _watched() or len(arguments) != len(expected):
            return overload(*arguments)
        for argument, kinds in zip(arguments, expected, strict=True):
            if type(argument) not in kinds:
                return overload(*arguments)
        if _wants_derivative(arguments):
            return overload(*arguments)
        for place in tensors:
            tensor = arguments[place]
            # Neither sparse, fake, meta nor a negative view.
            if tensor is not None and _torch_c._dispatch_keys(tensor).raw_repr() not in _DENSE:
                return overload(*arguments)
        result = run(*arguments)
        if written:
            # Autograd needs to know what is written in place.
            torch.autograd.graph.increment_version([arguments[place] for place in written])
        return result

    return call


def _dispatched(overload: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the autograd kernel, which the dispatcher calls first at each level of a transform.

    Derivatives are refused here: below autograd, tensors no longer show that one is wanted.
    """
    schema = overload._schema
    op = re.sub(r"^tritune::|_(out|inplace|lse)$", "", schema.name)
    names = [argument.name for argument in schema.arguments]
    written = [place for place, argument in enumerate(schema.arguments) if argument.is_write]

    def call(keys: Any, *arguments: Any) -> Any:
        if _wants_derivative(arguments):
            with Check(op) as check:
                for name, argument in zip(names, arguments, strict=True):
                    if isinstance(argument, torch.Tensor) and argument.is_floating_point():
                        check.no_gradient(name, argument)
                        check.no_tangent(name, argument)
        if keys.raw_repr() not in _DENSE:
            with _torch_c._AutoDispatchBelowAutograd():
                return overload(*arguments)
        result = run(*arguments)
        if written:
            torch.autograd.graph.increment_version([arguments[place] for place in written])
        return result

    return call


def _wants_derivative(arguments: Sequence[Any]) -> bool:
    """Return whether some tensor may need a derivative; the slow path finds out which."""
    return forward_ad._current_level >= 0 or (
        torch.is_grad_enabled() and _torch_c._any_requires_grad(*arguments)
    )


def _dense_keys() -> Iterator[int]:
    """Yield the dispatch keys of dense tensors on CPUs and GPUs: ordinary ones, those made in
    inference mode, and both as autograd kernels get them.
    """
    for device in ("CPU", "CUDA"):
        for others in (
            ("ADInplaceOrView", f"Autograd{device}", f"Autocast{device}"),
            (f"Autocast{device}",),
            (f"Autograd{device}",),
        ):
            keys = _torch_c.DispatchKeySet(getattr(_torch_c.DispatchKey, device))
            for other in others:
                keys = keys.add(getattr(_torch_c.DispatchKey, other))
            yield keys.raw_repr()


_DENSE = frozenset(_dense_keys())


def _kinds(declared: str) -> tuple[type, ...]:
    """Return the exact types that a schema's type takes without conversion."""
    optional = declared.startswith("Optional[")
    kinds = _KINDS.get(declared.removeprefix("Optional[").removesuffix("]"), ())
    return (*kinds, type(None)) if optional else kinds


def _watched() -> bool:
    """Return whether calls are compiled, traced, transformed or profiled."""
    return (
        torch.compiler.is_compiling()
        or _torch_c._len_torch_dispatch_stack() > 0
        or _torch_c._functorch.peek_interpreter_stack() is not None
        or _torch_c._get_tracing_state() is not None
        or _torch_c._autograd._profiler_enabled()
    )


def _on_its_device(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `run` so that the tensors' GPU is current: Triton launches on the current one."""

    def guarded(first: torch.Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            return run(first, *rest)
        with torch.cuda.device(first.device):
            return run(first, *rest)

    return guarded
