"""`tritune.autotune`: what `triton.autotune` is, with winners that are remembered and candidates
that run in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import triton
from triton.runtime.autotuner import Autotuner as TritonAutotuner

from tritune.errors import TrituneError
from tritune.space import Space
from tritune.store.records import Task
from tritune.tuning.autotune.call_problem import ProblemSpec
from tritune.tuning.autotune.tuned_kernel import Reference, TunedKernel


def autotune(
    configs: Iterable[triton.Config] | None = None,
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    space: Space | None = None,
    reference: Reference | None = None,
    problem: ProblemSpec | None = None,
) -> Callable[[Any], Autotuner]:
    """Tune a Triton kernel when it first meets a problem; `triton.autotune` with a memory.

    Everything that `triton.autotune` takes means what it means there. Besides:

    `space` is a `tritune.Space` to search, instead of a list of configs or beside it; the first
    config of the list, or else of the space, is the default that others must beat.
    `reference` says what is right: a function of the kernel's arguments by name, or the result
    itself; a dict from argument names to tensors, or tensors for all arguments that are written.
    Without it, every config must agree with the first.
    `problem` says what can change the winner: names of arguments, or a function of arguments by
    name that returns a dict. By default, that is `key`; the dtypes always belong to it.

    `do_bench`, `warmup`, `rep`, `use_cuda_graph` and `cache_results` matter only where a kernel
    has to be tuned within the process; a warning says so, and why.
    """
    listed = None if configs is None else list(configs)
    if listed is None and space is None:
        raise TrituneError("autotune needs configs=[triton.Config(...), ...] or space=Space(...)")
    if space is not None and prune_configs_by:
        raise TrituneError("prune_configs_by is for lists; write constraints into the space")

    def decorate(fn: Any) -> Autotuner:
        return Autotuner(
            fn,
            fn.arg_names,
            listed,
            key,
            reset_to_zero,
            restore_value,
            pre_hook=pre_hook,
            post_hook=post_hook,
            prune_configs_by=prune_configs_by,
            warmup=warmup,
            rep=rep,
            use_cuda_graph=use_cuda_graph,
            do_bench=do_bench,
            cache_results=cache_results,
            space=space,
            reference=reference,
            problem=problem,
        )

    return decorate


class Autotuner(TritonAutotuner):
    """A kernel with configs. Launches like any other: `kernel[grid](...)`."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[triton.Config] | None,
        *args: Any,
        space: Space | None = None,
        reference: Reference | None = None,
        problem: ProblemSpec | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(fn, arg_names, configs, *args, **kwargs)
        if space is not None:
            self.configs = list(configs or ())
        self.space, self.reference = space, reference
        self._tuned = TunedKernel(self, space=space, reference=reference, problem=problem)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the winner for these arguments, tuning first if there is none."""
        return self._tuned.run(args, kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compile every config of the list; of a space, the default."""
        if self.configs:
            return list(super().warmup(*args, **kwargs))
        return self._tuned.warmup(args, kwargs)

    def task(self, *args: Any, **kwargs: Any) -> Task:
        """Return the key under which the store has the results for these arguments."""
        return self._tuned.task(args, kwargs)
