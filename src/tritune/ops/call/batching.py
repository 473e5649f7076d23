"""Rules of ops for `torch.vmap`: one launch for all where only the activations have a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Gets `(info, in_dims, *args)` as torch.library.register_vmap says; returns (results, their dims).
Rule = Callable[..., tuple[Any, Any]]
#: Returns the rule of an op, which it gets.
MakeRule = Callable[[Callable[..., Any]], Rule]


def leading(arguments: int) -> MakeRule:
    """Make rules for ops whose first `arguments` have any leading dimensions, all shaped alike.

    If anything else has a batch, the op is called for each element.
    """

    def make(call: Callable[..., Any]) -> Rule:
        def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
            if any(dim is not None for dim in in_dims[arguments:]):
                return one_by_one(call)(info, in_dims, *args)
            batched = _batch_first(args[:arguments], in_dims, info.batch_size)
            return _with_dims(call(*batched, *args[arguments:]))

        return rule

    return make


def one_by_one(call: Callable[..., Any]) -> Rule:
    """Make the rule that calls the op for each element of the batch."""

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        results = [
            call(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(results[0], tuple):
            return _with_dims(tuple(map(torch.stack, zip(*results, strict=True))))
        return _with_dims(torch.stack(results))

    return rule


def folded(arguments: int, mask: int) -> MakeRule:
    """Make rules for ops whose first `arguments` begin with a batch, which vmap's is folded into.

    Argument number `mask`, which may be None, can be broadcast to four dimensions.
    """

    def make(call: Callable[..., Any]) -> Rule:
        def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
            others = [dim for i, dim in enumerate(in_dims) if i >= arguments and i != mask]
            if any(dim is not None for dim in others):
                return one_by_one(call)(info, in_dims, *args)
            size = info.batch_size
            tensors = _batch_first(args[:arguments], in_dims, size)
            rest = list(args[arguments:])
            if args[mask] is not None:
                (whole,) = _batch_first([args[mask]], [in_dims[mask]], size)
                while whole.dim() < 5:
                    whole = whole.unsqueeze(1)
                whole = whole.expand(-1, tensors[0].shape[1], -1, -1, -1)
                rest[mask - arguments] = whole.flatten(0, 1)
            result = call(*(tensor.flatten(0, 1) for tensor in tensors), *rest)
            if isinstance(result, tuple):
                return _with_dims(tuple(part.unflatten(0, (size, -1)) for part in result))
            return _with_dims(result.unflatten(0, (size, -1)))

        return rule

    return make


def _batch_first(
    tensors: Sequence[torch.Tensor], dims: Sequence[int | None], size: int
) -> list[torch.Tensor]:
    """Return tensors with the batch as the first dimension; those without one are expanded."""
    return [
        tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]


def _with_dims(result: Any) -> tuple[Any, Any]:
    return result, (0,) * len(result) if isinstance(result, tuple) else 0
