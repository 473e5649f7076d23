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
    _LIBRARY.define(schema)
    overload: Any = getattr(torch.ops.tritune, name).default
    arguments = overload._schema.arguments
    run = _wrapped(run, [place for place, each in enumerate(arguments) if each.is_write])
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _torch_library.register_fake(f"tritune::{name}", fake, lib=_LIBRARY)
    _LIBRARY.impl(name, _dispatched(overload, run), "Autograd", with_keyset=True)
    if vmap is not None:
        _torch_library.register_vmap(f"tritune::{name}", vmap(overload), lib=_LIBRARY)
    call: Callable[..., Any] = overload
    return call


def _dispatched(overload: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the autograd kernel, which the dispatcher calls first at each level of a transform.

    Derivatives are refused here: below autograd, tensors no longer show that one is wanted.
    """
    schema = overload._schema
    op = re.sub(r"^tritune::|_(out|inplace|lse)$", "", schema.name)
    names = [argument.name for argument in schema.arguments]

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
        return run(*arguments)

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


def _wrapped(run: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """Return `run` with the tensors' GPU current and with new versions of the written arguments."""

    def wrapped(*arguments: Any) -> Any:
        first = arguments[0]
        if first.is_cuda:
            # Triton launches on the current GPU.
            with torch.cuda.device(first.device):
                result = run(*arguments)
        else:
            result = run(*arguments)
        if written:
            torch.autograd.graph.increment_version([arguments[place] for place in written])
        return result

    return wrapped
