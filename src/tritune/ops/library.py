"""Registration with torch: opaque to its compilers, with a fake kernel that knows shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tritune.ops.batching import Rule

_torch_library: Any = torch.library  # without its types: half of its functions have none
_torch_c: Any = torch._C
_LIBRARY = _torch_library.Library("tritune", "DEF")


def register(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[[Callable[..., Any]], Rule] | None = None,
) -> Callable[..., Any]:
    """Define `tritune::<schema>` and return what calls it.

    `run` gets real tensors of one device, which is current while it runs; its first argument is
    one of them. `fake` makes empty ones with the same shapes, dtypes and strides as `run` would.
    `vmap` makes a rule for torch.vmap of what calls the op.
    """
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, _on_its_device(run), "CompositeExplicitAutograd")
    _torch_library.register_fake(f"tritune::{name}", fake, lib=_LIBRARY)
    overload: Callable[..., Any] = getattr(torch.ops.tritune, name).default
    if vmap is not None:
        _torch_library.register_vmap(f"tritune::{name}", vmap(overload), lib=_LIBRARY)
    # Torch has to hear of what is written in place, whoever watches.
    return overload if "!" in schema else _direct(overload, _on_its_device(run))


def _direct(overload: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `run` itself where nobody would notice: torch's way there takes longer than many a
    kernel.
    """

    def call(first: torch.Tensor, *rest: Any) -> Any:
        return overload(first, *rest) if _watched(first) else run(first, *rest)

    return call


def _watched(tensor: torch.Tensor) -> bool:
    """Whether somebody compiles, traces, transforms, profiles or wraps what is called."""
    return (
        torch.compiler.is_compiling()
        or type(tensor) is not torch.Tensor
        or _torch_c._len_torch_dispatch_stack() > 0
        or _torch_c._functorch.peek_interpreter_stack() is not None
        or _torch_c._get_tracing_state() is not None
        or _torch_c._autograd._profiler_enabled()
    )


def _on_its_device(run: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current GPU, which need not be the one that the tensors are on."""

    def guarded(first: torch.Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            return run(first, *rest)
        with torch.cuda.device(first.device):
            return run(first, *rest)

    return guarded
