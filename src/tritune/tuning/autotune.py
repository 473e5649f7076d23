"""`tritune.autotune`: what `triton.autotune` is, with winners that are remembered and candidates
that run in processes of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
import triton
from triton import knobs
from triton.runtime.autotuner import Autotuner as TritonAutotuner

from tritune.errors import TrituneError
from tritune.kernels.kernel import Kernel
from tritune.policy.modes import source_of
from tritune.policy.policy import capturing
from tritune.policy.process import POLICY
from tritune.policy.sources import warn_once
from tritune.space import Space
from tritune.store import StoreError
from tritune.store.records import Task
from tritune.targets.device import detect
from tritune.tuning.call_facts import Facts, Problem, call_with, device_of
from tritune.tuning.call_folder import CallToTune, Hooks
from tritune.tuning.later import later
from tritune.tuning.launches import Call, stack_of
from tritune.tuning.portable import PortableError
from tritune.tuning.process import WorkerError
from tritune.tuning.triton_configs import Offer, offer_of_list, offer_of_space
from tritune.tuning.tune_call import (
    Question,
    answer_without_tuning,
    kernel_of,
    known,
    process_store,
    timings_ms,
    tune_call,
    tune_written,
    written_call,
)

Reference: TypeAlias = "Mapping[str, torch.Tensor] | Callable[..., Any]"


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
    problem: Problem | None = None,
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
        problem: Problem | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(fn, arg_names, configs, *args, **kwargs)
        if space is not None:
            self.configs = list(configs or ())
        self.space, self.reference = space, reference
        self._facts = Facts(arg_names, self.keys, problem)
        self._interpreted = bool(knobs.runtime.interpret)
        self._kernel: Kernel | None = None
        self._lock = threading.RLock()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the winner for these arguments, tuning first if there is none."""
        alone = len(self.configs) < 2 and self.space is None
        if alone or self._interpreted or kwargs.get("warmup"):
            return super().run(*args, **kwargs)
        nargs = dict(zip(self.arg_names, args, strict=False))
        key = self._facts.key({**nargs, **kwargs})
        config = self.cache.get(key)
        if config is None:
            try:
                with self._lock:
                    config = self.cache.get(key) or self._first_call(key, args, kwargs)
            except (PortableError, WorkerError, StoreError) as error:
                return self._run_as_triton(key, error, args, kwargs)
        self.best_config = config
        self.nargs = nargs
        chosen = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**nargs, **kwargs, **chosen})
        result = self.fn.run(*args, **kwargs, **chosen)
        self.nargs = None  # type: ignore[assignment]
        return result

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compile every config of the list; of a space, the default."""
        if self.configs:
            return list(super().warmup(*args, **kwargs))
        named = self._named(args, kwargs)
        offer = self._offer(named, kwargs, device_of(named))
        chosen = offer.triton_config(offer.default).all_kwargs()
        return [self.fn.warmup(*args, **kwargs, **chosen)]

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs}

    def task(self, *args: Any, **kwargs: Any) -> Task:
        """Under what the store keeps what is known of a call with these arguments."""
        return self._ask(args, kwargs)[0].task

    def _ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Question, Offer]:
        """What has to be decided for a call, and what there is to choose from."""
        named = self._named(args, kwargs)
        device = device_of(named)
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        offer = self._offer(named, kwargs, device)
        fields = self._facts.fields(named)
        return Question(self._tuned_kernel(), fields, device, offer.points, offer.default), offer

    def _first_call(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> triton.Config:
        """The config for a problem that this process has not met before."""
        question, offer = self._ask(args, kwargs)
        if offer.points.size() == 1:
            return self._settle(key, offer.triton_config(offer.default))
        setting = POLICY.setting
        if capturing(question.device):
            # It holds for the graph that is captured; afterwards there may be time to tune.
            return offer.triton_config(answer_without_tuning(question, source_of(setting)))
        if setting.mode in ("serve", "pinned"):
            point = answer_without_tuning(question, source_of(setting))
            return self._settle(key, offer.triton_config(point))
        wanted = self._wanted(question, offer, args, kwargs)
        if setting.mode == "background":
            return self._tuned_later(key, question, offer, wanted)
        config, raced = self._tuned(key, question, offer, wanted)
        if raced:
            # As after Triton's own race: what is reset to zero begins with zeros.
            self.pre_hook({**self._named(args, kwargs), **config.all_kwargs()}, reset_only=True)
        return config

    def _offer(
        self, named: Mapping[str, Any], kwargs: dict[str, Any], device: torch.device
    ) -> Offer:
        if self.space is None:
            configs = self.prune_configs(kwargs)
            for config in configs:
                _check_conflicts(kwargs, config)
            return offer_of_list(configs)
        known = self._facts.constants(named)
        return offer_of_space(self.space, detect(device).target, known, self.configs)

    def _tuned_kernel(self) -> Kernel:
        if self._kernel is None:
            function = self.base_fn
            name = f"{function.__module__}.{function.__qualname__}"
            self._kernel = kernel_of(name, stack_of(self.fn).kernel, self.space)
        return self._kernel

    def _wanted(
        self,
        question: Question,
        offer: Offer,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Callable[[], CallToTune]:
        """What workers have to know; worked out only if there is something for them to do."""
        given = {name: kwargs[name] for name in kwargs if name not in ("grid", "warmup")}
        hooks = Hooks(
            self.pre_hook if self.user_defined_pre_hook else None,
            self.post_hook if self.user_defined_post_hook else None,
            offer.hooks(),
        )
        return lambda: CallToTune(
            stack_of(self.fn),
            Call(args, given, kwargs["grid"]),
            question.device,
            question.default,
            offer.kwargs(),
            hooks,
            () if self.user_defined_pre_hook else self.reset_to_zero,
            self._expected(self._named(args, given)),
        )

    def _expected(self, named: Mapping[str, Any]) -> Any:
        if not callable(self.reference):
            return self.reference
        copies = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in self._facts.own(named).items()
        }
        result = call_with(self.reference, copies)
        return [result] if isinstance(result, torch.Tensor) else result

    def _tuned(
        self,
        key: tuple[Any, ...],
        question: Question,
        offer: Offer,
        wanted: Callable[[], CallToTune],
    ) -> tuple[triton.Config, bool]:
        """The winner, and whether a race had to be run for it."""
        store, started = process_store(), time.monotonic()
        found = known(question, store)
        raced = found is None
        if found is None:
            found = tune_call(question, wanted(), store)
            self.bench_time = time.monotonic() - started
        point = question.default if found is None else found.winner.config
        config = self._settle(key, offer.triton_config(point))
        if found is not None:
            self.configs_timings = {
                offer.triton_config(tried): ms for tried, ms in timings_ms(found).items()
            }
        self._tell(key, config, raced)
        return config, raced

    def _tuned_later(
        self,
        key: tuple[Any, ...],
        question: Question,
        offer: Offer,
        wanted: Callable[[], CallToTune],
    ) -> triton.Config:
        """The best answer there is now; a better one takes its place when it is found."""
        store = process_store()
        point = answer_without_tuning(question)
        if known(question, store) is None:
            # The arguments are copied now: soon they will hold something else.
            block = ExitStack()
            written = block.enter_context(written_call(wanted()))

            def tune() -> None:
                with block:
                    found = tune_written(question, written, store)
                if found is not None:
                    self._settle(key, offer.triton_config(found.winner.config))

            later(tune)
        return self._settle(key, offer.triton_config(point))

    def _settle(self, key: tuple[Any, ...], config: triton.Config) -> triton.Config:
        self.cache[key] = config
        return config

    def _tell(self, key: tuple[Any, ...], config: triton.Config, raced: bool) -> None:
        """Say what Triton says to those who listen."""
        if knobs.autotuning.print and raced:
            print(
                f"Triton autotuning for function {self.base_fn.__name__},\nwith key as {key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {config};"
            )
        listener = getattr(knobs.autotuning, "listener", None)
        if listener is not None:
            listener(
                fn=stack_of(self.fn).kernel,
                key=key,
                best_config=config,
                configs_timings=getattr(self, "configs_timings", {}),
                duration=self.bench_time if raced else None,
                cache_hit=not raced,
            )

    def _run_as_triton(
        self,
        key: tuple[Any, ...],
        reason: TrituneError,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Tune within this process, where no other can: no config may crash, and all write to the
        caller's tensors.
        """
        name = self.base_fn.__qualname__
        if self.space is not None:
            raise TrituneError(
                f"{name} has a space, and worker processes cannot tune it: {reason}. With a list "
                "of configs, it can be tuned within this process"
            ) from reason
        warn_once(
            f"{name} is tuned within this process, as triton.autotune does it, because worker "
            f"processes cannot: {reason}"
        )
        # Triton's own memory between processes.
        self.cache_results = True
        result = super().run(*args, **kwargs)
        self.cache[key] = self.best_config
        return result


def _check_conflicts(kwargs: Mapping[str, Any], config: triton.Config) -> None:
    conflicts = kwargs.keys() & config.kwargs.keys()
    if conflicts:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(conflicts)}."
            " Make sure that you don't re-define auto-tuned symbols."
        )
