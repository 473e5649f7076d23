"""How ops answer `torch.vmap`: one launch for all where the activations alone have a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Gets `(info, in_dims, *args)` as torch.library.register_vmap says; returns (results, their dims).
Rule = Callable[..., tuple[Any, Any]]


def leading(call: Callable[..., Any], arguments: int) -> Rule:
    """For ops that take any leading dimensions: those of the first `arguments`, all shaped alike.

    Anything else that has a batch makes it a call for each element.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        if any(dim is not None for dim in in_dims[arguments:]):
            return one_by_one(call)(info, in_dims, *args)
        batched = [
            _first(arg, dim, info.batch_size)
            for arg, dim in zip(args[:arguments], in_dims, strict=False)
        ]
        return _with_dims(call(*batched, *args[arguments:]))

    return rule


def one_by_one(call: Callable[..., Any]) -> Rule:
    """A call for each element of the batch."""

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        results = [
            call(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(results[0], tuple):
            return _with_dims(tuple(map(torch.stack, zip(*results, strict=True))))
        return _with_dims(torch.stack(results))

    return rule


def folded(call: Callable[..., Any], arguments: int, mask: int) -> Rule:
    """For ops whose first `arguments` begin with a batch, which takes in that of vmap.

    Argument number `mask`, which may be None, can be broadcast to four dimensions.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        others = [dim for i, dim in enumerate(in_dims) if i >= arguments and i != mask]
        if any(dim is not None for dim in others):
            return one_by_one(call)(info, in_dims, *args)
        size = info.batch_size
        tensors = [
            _first(arg, dim, size) for arg, dim in zip(args[:arguments], in_dims, strict=False)
        ]
        rest = list(args[arguments:])
        if args[mask] is not None:
            whole = _first(args[mask], in_dims[mask], size)
            while whole.dim() < 5:
                whole = whole.unsqueeze(1)
            whole = whole.expand(-1, tensors[0].shape[1], -1, -1, -1)
            rest[mask - arguments] = whole.flatten(0, 1)
        result = call(*(tensor.flatten(0, 1) for tensor in tensors), *rest)
        parts = result if isinstance(result, tuple) else (result,)
        apart = tuple(part.unflatten(0, (size, -1)) for part in parts)
        return _with_dims(apart if isinstance(result, tuple) else apart[0])

    return rule


def _first(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """The batch as the first dimension; what has none is the same for all."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _with_dims(result: Any) -> tuple[Any, Any]:
    return result, (0,) * len(result) if isinstance(result, tuple) else 0
