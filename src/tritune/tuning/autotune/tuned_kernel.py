"""What answers for the calls of an autotuned kernel: the store, a race in worker processes, or a
race within the process where no other can run it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import torch
import triton
from triton import knobs
from triton.runtime.autotuner import Autotuner as TritonAutotuner
from triton.runtime.jit import JITFunction

from tritune import env
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
from tritune.tuning.autotune.call_facts import Facts, Problem, call_with, device_of
from tritune.tuning.autotune.call_folder import CallToTune, Hooks
from tritune.tuning.autotune.in_process import BusyError, Times, race_in_process
from tritune.tuning.autotune.launches import Call, innermost, stack_of
from tritune.tuning.autotune.portable import PortableError
from tritune.tuning.autotune.recorded_calls import record_call
from tritune.tuning.autotune.run_log import KNOWN, RECORDED, UNTUNED, Event, tell, tell_tuned
from tritune.tuning.autotune.triton_configs import Offer, offer_of_list, offer_of_space
from tritune.tuning.autotune.tune_call import (
    Question,
    answer_without_tuning,
    keep_times,
    kernel_of,
    known,
    process_store,
    quantiles_ms,
    timings_ms,
    tune_call,
    tune_written,
    written_call,
)
from tritune.tuning.workers.later import later
from tritune.tuning.workers.process import WorkerError

Reference: TypeAlias = "Mapping[str, torch.Tensor] | Callable[..., Any]"

#: Modes in which nothing is tuned while a program runs.
_NEVER_TUNES = ("serve", "pinned", "record")
#: What keeps a call from being tuned in worker processes.
_NOT_ELSEWHERE = (PortableError, WorkerError, StoreError)


class TunedKernel:
    """The memory behind one of Triton's autotuners, which stays what it is for everybody else."""

    def __init__(
        self,
        owner: TritonAutotuner,
        *,
        space: Space | None = None,
        reference: Reference | None = None,
        problem: Problem | None = None,
        adopted: bool = False,
    ) -> None:
        self.owner = owner
        self._space, self._reference = space, reference
        #: Whether its author has never heard of tritune: whatever goes wrong, Triton's way is left.
        self._adopted = adopted
        self._facts = Facts(owner.arg_names, owner.keys, problem)
        self._interpreted = bool(knobs.runtime.interpret) or _is_interpreted(owner)
        self._kernel: Kernel | None = None
        self._lock = threading.RLock()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch with the winner for these arguments, tuning first if there is none."""
        owner = self.owner
        alone = len(owner.configs) < 2 and self._space is None
        if alone or self._interpreted or kwargs.get("warmup"):
            return triton_run()(owner, *args, **kwargs)
        nargs = dict(zip(owner.arg_names, args, strict=False))
        key = self._facts.key({**nargs, **kwargs})
        config = owner.cache.get(key)
        if config is None:
            with self._lock:
                config = owner.cache.get(key) or self._decide(key, args, kwargs)
        owner.best_config = config
        owner.nargs = nargs
        chosen = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**nargs, **kwargs, **chosen})
        result = owner.fn.run(*args, **kwargs, **chosen)
        owner.nargs = None
        return result

    def warmup(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Compile the default config of a space."""
        named = self._named(args, kwargs)
        offer = self._offer(named, kwargs, device_of(named))
        chosen = offer.triton_config(offer.default).all_kwargs()
        return [self.owner.fn.warmup(*args, **kwargs, **chosen)]

    def task(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
        """Under what the store keeps what is known of a call with these arguments."""
        return self._ask(args, kwargs)[0].task

    def _decide(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> triton.Config:
        """The config for a problem that this process has not met before, one way or another."""
        try:
            config = self._first_call(key, args, kwargs)
            if not capturing(device_of(self._named(args, kwargs))):
                self._reset(config, args, kwargs)
            return config
        except _NOT_ELSEWHERE as error:
            if _mode() == "pinned" and isinstance(error, StoreError):
                raise  # the reviewed file cannot be read, and nothing else will do
            reason: Exception = error
        except TrituneError:
            raise
        except Exception as error:
            if not self._adopted:
                raise
            reason = error
        return self._within_process(key, reason, args, kwargs)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.owner.arg_names, args, strict=False)), **kwargs}

    def _ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Question, Offer]:
        """What has to be decided for a call, and what there is to choose from."""
        named = self._named(args, kwargs)
        device = device_of(named)
        self.owner.nargs = dict(zip(self.owner.arg_names, args, strict=False))
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
        mode, source = _mode(), source_of(POLICY.setting)
        if capturing(question.device):
            # It holds for the graph that is captured; afterwards there may be time to tune.
            return offer.triton_config(answer_without_tuning(question, source))
        wanted = self._wanted(question, offer, args, kwargs)
        if mode in _NEVER_TUNES:
            if mode == "record":
                self._record(question, wanted)
            else:
                tell(Event(question.kernel.name, UNTUNED))
            return self._settle(key, offer.triton_config(answer_without_tuning(question, source)))
        if mode == "background":
            return self._tuned_later(key, question, offer, wanted)
        return self._tuned(key, question, offer, wanted)

    def _reset(self, config: triton.Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """As after Triton's own race, which every process would have run: what is reset to zero
        begins with zeros.
        """
        named = {**self._named(args, kwargs), **config.all_kwargs()}
        self.owner.pre_hook(named, reset_only=True)

    def _offer(
        self, named: Mapping[str, Any], kwargs: dict[str, Any], device: torch.device
    ) -> Offer:
        if self._space is None:
            configs = self.owner.prune_configs(kwargs)
            for config in configs:
                _check_conflicts(kwargs, config)
            return offer_of_list(configs)
        known = self._facts.constants(named)
        return offer_of_space(self._space, detect(device).target, known, self.owner.configs)

    def _tuned_kernel(self) -> Kernel:
        if self._kernel is None:
            function = self.owner.base_fn
            name = f"{_module_name(function)}.{function.__qualname__}"
            self._kernel = kernel_of(name, innermost(self.owner.fn), self._space)
        return self._kernel

    def _wanted(
        self,
        question: Question,
        offer: Offer,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Callable[[], CallToTune]:
        """What workers have to know; worked out only if there is something for them to do."""
        owner = self.owner
        given = {name: kwargs[name] for name in kwargs if name not in ("grid", "warmup")}
        hooks = Hooks(
            owner.pre_hook if owner.user_defined_pre_hook else None,
            owner.post_hook if owner.user_defined_post_hook else None,
            offer.hooks(),
        )
        return lambda: CallToTune(
            stack_of(owner.fn),
            Call(args, given, kwargs["grid"]),
            question.device,
            question.default,
            offer.kwargs(),
            hooks,
            () if owner.user_defined_pre_hook else owner.reset_to_zero,
            self._expected(self._named(args, given)),
        )

    def _expected(self, named: Mapping[str, Any]) -> Any:
        if not callable(self._reference):
            return self._reference
        copies = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in self._facts.own(named).items()
        }
        result = call_with(self._reference, copies)
        return [result] if isinstance(result, torch.Tensor) else result

    def _tuned(
        self,
        key: tuple[Any, ...],
        question: Question,
        offer: Offer,
        wanted: Callable[[], CallToTune],
    ) -> triton.Config:
        """The winner that is known, or that of a race."""
        store, started = process_store(), time.monotonic()
        found = known(question, store)
        raced = found is None
        if found is None:
            found = tune_call(question, wanted(), store)
            self.owner.bench_time = time.monotonic() - started
        else:
            tell(Event(question.kernel.name, KNOWN))
        point = question.default if found is None else found.winner.config
        config = self._settle(key, offer.triton_config(point))
        if found is not None:
            self.owner.configs_timings = {
                offer.triton_config(tried): ms for tried, ms in timings_ms(found).items()
            }
        self._tell(key, config, raced)
        return config

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
        if known(question, store) is not None:
            tell(Event(question.kernel.name, KNOWN))
        else:
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

    def _record(self, question: Question, wanted: Callable[[], CallToTune]) -> None:
        store, name = process_store(), question.kernel.name
        if known(question, store) is not None:
            tell(Event(name, KNOWN))
            return
        try:
            record_call(question, wanted(), store)
        except TrituneError as error:
            tell(Event(name, UNTUNED))
            warn_once(f"{name} cannot be recorded: {error}")
        else:
            tell(Event(name, RECORDED))

    def _settle(self, key: tuple[Any, ...], config: triton.Config) -> triton.Config:
        self.owner.cache[key] = config
        return config

    def _tell(self, key: tuple[Any, ...], config: triton.Config, raced: bool) -> None:
        """Say what Triton says to those who listen."""
        owner = self.owner
        if knobs.autotuning.print and raced:
            print(
                f"Triton autotuning for function {owner.base_fn.__name__},\nwith key as {key},\n"
                f"finished after {owner.bench_time:.2f}s,\nbest config selected: {config};"
            )
        listener = getattr(knobs.autotuning, "listener", None)
        if listener is not None:
            listener(
                fn=innermost(owner.fn),
                key=key,
                best_config=config,
                configs_timings=getattr(owner, "configs_timings", {}),
                duration=owner.bench_time if raced else None,
                cache_hit=not raced,
            )

    def _within_process(
        self,
        key: tuple[Any, ...],
        reason: Exception,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> triton.Config:
        """The winner of a race within this process, where no other can run it: nothing survives a
        crash there.
        """
        owner = self.owner
        name = owner.base_fn.__qualname__
        if self._space is not None:
            raise TrituneError(
                f"{name} has a space, and worker processes cannot tune it: {reason}. With a list "
                "of configs, it can be tuned within this process"
            ) from reason
        owner.nargs = dict(zip(owner.arg_names, args, strict=False))
        configs = owner.prune_configs(kwargs)
        if len(configs) == 1 or _mode() in _NEVER_TUNES:
            tell(Event(name, UNTUNED))
            return self._settle(key, configs[0])
        warn_once(
            f"{name} is tuned within this process, as triton.autotune does it, because worker "
            f"processes cannot: {reason}"
        )
        started = time.monotonic()
        try:
            times = race_in_process(owner, configs, args, kwargs)
        except BusyError:
            warn_once(
                f"this machine is busy: other processes disturbed what was measured of {name}, and "
                "its first config is used"
            )
            self._reset(configs[0], args, kwargs)
            return self._settle(key, configs[0])
        owner.bench_time = time.monotonic() - started
        failed = [str(config) for config in configs if config not in times.once]
        tell_tuned(name, len(configs), failed)
        owner.configs_timings = {
            each: quantiles_ms(times.final.get(each) or [times.once.get(each, math.inf)])
            for each in configs
        }
        config = self._remembered(times, args, kwargs)
        if config is None:
            config = min(owner.configs_timings, key=owner.configs_timings.__getitem__)
        self._settle(key, config)
        self._tell(key, config, raced=True)
        self._reset(config, args, kwargs)
        return config

    def _remembered(
        self,
        times: Times,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> triton.Config | None:
        """Who the store says has won a race within the process; None where it cannot be kept."""
        try:
            question, offer = self._ask(args, kwargs)
            found = keep_times(question, offer.listed, times, process_store())
        except Exception as error:
            warn_once(f"what was measured is not kept ({type(error).__name__}: {error})")
            return None
        return None if found is None else offer.triton_config(found.winner.config)


def _mode() -> str:
    """How this process chooses configs; `tritune run --serve` forbids tuning, not compiling."""
    mode = POLICY.setting.mode
    return "serve" if mode != "record" and env.AUTOTUNE.read() == "serve" else mode


def triton_run() -> Callable[..., Any]:
    """Triton's own `Autotuner.run`, whatever stands in its place."""
    run = TritonAutotuner.run
    return getattr(run, "__wrapped__", run)


def _module_name(function: Any) -> str:
    """A function's module; of a script, what it would be called if it were imported."""
    name = str(function.__module__)
    if name != "__main__":
        return name
    main = function.__globals__
    if main.get("__spec__") is not None:
        return str(main["__spec__"].name).removesuffix(".__main__")
    return Path(main.get("__file__") or name).stem


def _is_interpreted(owner: TritonAutotuner) -> bool:
    function: Any = owner
    while hasattr(function, "fn") and not isinstance(function, JITFunction):
        if type(function).__name__ == "InterpretedFunction":
            return True
        function = function.fn
    return False


def _check_conflicts(kwargs: Mapping[str, Any], config: triton.Config) -> None:
    conflicts = kwargs.keys() & config.kwargs.keys()
    if conflicts:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(conflicts)}."
            " Make sure that you don't re-define auto-tuned symbols."
        )
