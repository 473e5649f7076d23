"""The config of a call of an autotuned kernel: from the store, by a race in worker processes,
or by a race within the process where no other can run it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
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
from tritune.tuning.autotune.call_folder import Hooks, TunableCall
from tritune.tuning.autotune.call_problem import ProblemReader, ProblemSpec, call_with, device_of
from tritune.tuning.autotune.digest import code_digest
from tritune.tuning.autotune.in_process import BusyError, Times, race_in_process
from tritune.tuning.autotune.launches import (
    CallArguments,
    decorated_kernel,
    jit_function,
    launch_arguments,
)
from tritune.tuning.autotune.pickling import TransferError
from tritune.tuning.autotune.recorded_calls import record_call
from tritune.tuning.autotune.run_log import RECORDED, STORED, UNTUNED, Event, log, log_tuned
from tritune.tuning.autotune.triton_configs import (
    Candidates,
    candidates_of_list,
    candidates_of_space,
)
from tritune.tuning.autotune.tune_call import (
    CallTask,
    config_without_tuning,
    kernel_of,
    process_store,
    quantiles_ms,
    store_times,
    stored_result,
    timings_ms,
    tune_call,
    tune_written,
    written_call,
)
from tritune.tuning.measure.statistics import pooled
from tritune.tuning.workers.background import run_in_background
from tritune.tuning.workers.worker import WorkerError

Reference: TypeAlias = "Mapping[str, torch.Tensor] | Callable[..., Any]"

#: Modes in which nothing is tuned while a program runs.
_NEVER_TUNES = ("serve", "pinned", "record")
#: What keeps a call from being tuned in worker processes.
_NOT_IN_WORKERS = (TransferError, WorkerError, StoreError)


@dataclass(frozen=True)
class _Call:
    """A call of a kernel, with its key among the winners of this process."""

    key: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: All arguments by name.
    named: dict[str, Any]


class TunedKernel:
    """Finds the config of each call of one of Triton's autotuners, which stays what it is for
    everybody else.
    """

    def __init__(
        self,
        owner: TritonAutotuner,
        *,
        space: Space | None = None,
        reference: Reference | None = None,
        problem: ProblemSpec | None = None,
        adopted: bool = False,
    ) -> None:
        self.owner = owner
        self._space, self._reference = space, reference
        #: Whether its author has never heard of tritune: whatever goes wrong, Triton's way is left.
        self._adopted = adopted
        self._problem = ProblemReader(owner.arg_names, owner.keys, problem)
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
        named = {**nargs, **kwargs}
        key = self._problem.cache_key(named)
        config = owner.cache.get(key)
        if config is None:
            with self._lock:
                config = owner.cache.get(key) or self._decide(_Call(key, args, kwargs, named))
        owner.best_config = config
        owner.nargs = nargs
        values = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**named, **values})
        result = owner.fn.run(*args, **kwargs, **values)
        owner.nargs = None
        return result

    def warmup(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Compile the default config of a space."""
        candidates = self._candidates(self._call(args, kwargs))
        values = candidates.triton_config(candidates.default).all_kwargs()
        return [self.owner.fn.warmup(*args, **kwargs, **values)]

    def task(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
        """Return the key under which the store has the results for these arguments."""
        return self._call_task(self._call(args, kwargs)).task

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        named = {**dict(zip(self.owner.arg_names, args, strict=False)), **kwargs}
        return _Call(self._problem.cache_key(named), args, kwargs, named)

    def _decide(self, call: _Call) -> triton.Config:
        """Return the config for a problem that is new to this process, one way or another."""
        try:
            config = self._first_call(call)
            if not capturing(device_of(call.named)):
                self._reset(config, call)
            return config
        except _NOT_IN_WORKERS as error:
            if _mode() == "pinned" and isinstance(error, StoreError):
                raise  # the reviewed file cannot be read, and nothing else will do
            reason: Exception = error
        except TrituneError:
            raise
        except Exception as error:
            if not self._adopted:
                raise
            reason = error
        return self._tuned_in_process(call, reason)

    def _first_call(self, call: _Call) -> triton.Config:
        task = self._call_task(call)
        candidates = task.candidates
        if candidates.points.size() == 1:
            return self._settle(call, candidates.triton_config(candidates.default))
        mode, source = _mode(), source_of(POLICY.mode)
        if capturing(task.device):
            # It holds for the graph that is captured; afterwards there may be time to tune.
            return candidates.triton_config(config_without_tuning(task, source))
        if mode in _NEVER_TUNES:
            if mode == "record":
                self._record(task, call)
            else:
                log(Event(task.kernel.name, UNTUNED))
            return self._settle(call, candidates.triton_config(config_without_tuning(task, source)))
        if mode == "background":
            return self._tuned_later(task, call)
        return self._tuned(task, call)

    def _settle(self, call: _Call, config: triton.Config) -> triton.Config:
        """Keep the config for the calls that follow."""
        self.owner.cache[call.key] = config
        return config

    def _reset(self, config: triton.Config, call: _Call) -> None:
        """Fill with zeros what is reset, as after Triton's own race, which every process would have
        run.
        """
        self.owner.pre_hook({**call.named, **config.all_kwargs()}, reset_only=True)

    def _call_task(self, call: _Call) -> CallTask:
        """Return what is to be decided for a call."""
        if self._kernel is None:
            function = self.owner.base_fn
            name = f"{_module_name(function)}.{function.__qualname__}"
            self._kernel = kernel_of(name, code_digest(jit_function(self.owner.fn)), self._space)
        fields, device = self._problem.fields(call.named), device_of(call.named)
        return CallTask(self._kernel, fields, device, self._candidates(call))

    def _candidates(self, call: _Call) -> Candidates:
        owner = self.owner
        owner.nargs = dict(zip(owner.arg_names, call.args, strict=False))
        if self._space is None:
            configs = owner.prune_configs(call.kwargs)
            for config in configs:
                _check_conflicts(call.kwargs, config)
            return candidates_of_list(configs)
        constants = self._problem.constants(call.named)
        target = detect(device_of(call.named)).target
        return candidates_of_space(self._space, target, constants, owner.configs)

    def _tunable_call(self, task: CallTask, call: _Call) -> TunableCall:
        """Return what workers have to know."""
        owner = self.owner
        kernel = decorated_kernel(owner.fn)
        given = {name: each for name, each in call.kwargs.items() if name not in ("grid", "warmup")}
        arguments = CallArguments(call.args, given, call.kwargs["grid"])
        values = task.candidates.kwargs()
        launches = None
        if values is not None:
            launches = {p: launch_arguments(kernel, arguments, each) for p, each in values.items()}
        hooks = Hooks(
            owner.pre_hook if owner.user_defined_pre_hook else None,
            owner.post_hook if owner.user_defined_post_hook else None,
            task.candidates.hooks(),
        )
        reset_to_zero = () if owner.user_defined_pre_hook else owner.reset_to_zero
        return TunableCall(
            kernel,
            arguments,
            task.device,
            task.candidates.default,
            launches,
            hooks,
            reset_to_zero,
            self._expected(call),
        )

    def _expected(self, call: _Call) -> Any:
        if not callable(self._reference):
            return self._reference
        copies = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in self._problem.own(call.named).items()
        }
        result = call_with(self._reference, copies)
        return [result] if isinstance(result, torch.Tensor) else result

    def _tuned(self, task: CallTask, call: _Call) -> triton.Config:
        """Return the winner that is stored, or that of a race."""
        store, started = process_store(), time.monotonic()
        result = stored_result(task, store)
        raced = result is None
        if result is None:
            result = tune_call(task, self._tunable_call(task, call), store)
            self.owner.bench_time = time.monotonic() - started
        else:
            log(Event(task.kernel.name, STORED))
        candidates = task.candidates
        point = candidates.default if result is None else result.winner.config
        config = self._settle(call, candidates.triton_config(point))
        if result is not None:
            self.owner.configs_timings = {
                candidates.triton_config(tried): ms for tried, ms in timings_ms(result).items()
            }
        self._notify(call, config, raced)
        return config

    def _tuned_later(self, task: CallTask, call: _Call) -> triton.Config:
        """Return the best config there is now; a better one takes its place when it is found."""
        store = process_store()
        point = config_without_tuning(task)
        if stored_result(task, store) is not None:
            log(Event(task.kernel.name, STORED))
        else:
            # The arguments are copied now: soon they will hold something else.
            block = ExitStack()
            written = block.enter_context(written_call(self._tunable_call(task, call)))

            def tune() -> None:
                with block:
                    result = tune_written(task, written, store)
                if result is not None:
                    self._settle(call, task.candidates.triton_config(result.winner.config))

            run_in_background(tune)
        return self._settle(call, task.candidates.triton_config(point))

    def _record(self, task: CallTask, call: _Call) -> None:
        store, name = process_store(), task.kernel.name
        if stored_result(task, store) is not None:
            log(Event(name, STORED))
            return
        try:
            record_call(task, self._tunable_call(task, call), store)
        except TrituneError as error:
            log(Event(name, UNTUNED))
            warn_once(f"{name} cannot be recorded: {error}")
        else:
            log(Event(name, RECORDED))

    def _notify(self, call: _Call, config: triton.Config, raced: bool) -> None:
        """Print what Triton prints, and call its listeners."""
        owner = self.owner
        if knobs.autotuning.print and raced:
            print(
                f"Triton autotuning for function {owner.base_fn.__name__},\n"
                f"with key as {call.key},\n"
                f"finished after {owner.bench_time:.2f}s,\nbest config selected: {config};"
            )
        listener = getattr(knobs.autotuning, "listener", None)
        if listener is not None:
            listener(
                fn=jit_function(owner.fn),
                key=call.key,
                best_config=config,
                configs_timings=getattr(owner, "configs_timings", {}),
                duration=owner.bench_time if raced else None,
                cache_hit=not raced,
            )

    def _tuned_in_process(self, call: _Call, reason: Exception) -> triton.Config:
        """Return the winner of a race within this process, where no other can run it: nothing
        survives a crash there.
        """
        owner = self.owner
        name = owner.base_fn.__qualname__
        if self._space is not None:
            raise TrituneError(
                f"{name} has a space, and worker processes cannot tune it: {reason}. With a list "
                "of configs, it can be tuned within this process"
            ) from reason
        owner.nargs = dict(zip(owner.arg_names, call.args, strict=False))
        configs = owner.prune_configs(call.kwargs)
        if len(configs) == 1 or _mode() in _NEVER_TUNES:
            log(Event(name, UNTUNED))
            return self._settle(call, configs[0])
        warn_once(
            f"{name} is tuned within this process, as triton.autotune does it, because worker "
            f"processes cannot: {reason}"
        )
        started = time.monotonic()
        try:
            times = race_in_process(owner, configs, call.args, call.kwargs)
        except BusyError:
            warn_once(
                f"this machine is busy: other processes disturbed what was measured of {name}, and "
                "its first config is used"
            )
            self._reset(configs[0], call)
            return self._settle(call, configs[0])
        owner.bench_time = time.monotonic() - started
        failed = [str(config) for config in configs if config not in times.first]
        log_tuned(name, len(configs), failed)
        owner.configs_timings = {
            each: quantiles_ms(pooled(times.final.get(each) or times.first.get(each, ())))
            for each in configs
        }
        config = self._stored_winner(call, times)
        if config is None:
            config = min(owner.configs_timings, key=owner.configs_timings.__getitem__)
        self._settle(call, config)
        self._notify(call, config, raced=True)
        self._reset(config, call)
        return config

    def _stored_winner(self, call: _Call, times: Times) -> triton.Config | None:
        """Store a race within the process and return its winner; None where that fails."""
        try:
            task = self._call_task(call)
            result = store_times(task, times, process_store())
        except Exception as error:
            warn_once(f"what was measured is not kept ({type(error).__name__}: {error})")
            return None
        return None if result is None else task.candidates.triton_config(result.winner.config)


def _mode() -> str:
    """Return the mode of this process; `tritune run --serve` forbids tuning, not compiling."""
    mode = POLICY.mode.name
    return "serve" if mode != "record" and env.AUTOTUNE.read() == "serve" else mode


def triton_run() -> Callable[..., Any]:
    """Return Triton's own `Autotuner.run`, whatever stands in its place."""
    run = TritonAutotuner.run
    return getattr(run, "__wrapped__", run)


def _module_name(function: Any) -> str:
    """Return a function's module; of a script, its name as if it were imported."""
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
