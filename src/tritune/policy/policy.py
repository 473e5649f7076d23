"""The config of a call: a dictionary look-up, and the slow path where there is no entry.

An entry is made by the first call of a problem. From then on no file, database, clock or lock is
touched. Whatever changes the answers (a mode, new winners) builds another dictionary and puts it in
the place of the old one in a single assignment, so a call sees the old or the new, never a mixture.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from tritune.kernels.kernel import Kernel, Problem
from tritune.policy import modes
from tritune.policy.kernel_policy import ChosenConfig, KernelPolicy, is_valid
from tritune.policy.modes import Mode
from tritune.policy.nearest import nearest_configs, same_kind
from tritune.policy.recorder import DispatchKey, Recorder
from tritune.policy.serving import CompileGuard, NotWarmedError, warming
from tritune.policy.sources import PolicySource, StoreSource, warn_once
from tritune.space import Config
from tritune.store.records import problem_text
from tritune.targets.device import detect, target_of

#: `tune(kernel, problem, device)`: tunes a problem in processes of its own, and stores the winner.
Tuner = Callable[[Kernel, Problem, torch.device], None]

# What this thread or task has forced, by kernel.
_forced: ContextVar[Mapping[Kernel, Mapping[str, Any]] | None] = ContextVar(
    "tritune_forced", default=None
)


class Policy:
    """The configs of one process. The ops use the one in `tritune.policy.process`."""

    def __init__(self, mode: Mode | None = None, tuner: Tuner | None = None) -> None:
        self._answers: dict[DispatchKey, Mapping[str, Any]] = {}
        #: Whether calls do more than look up: a config is forced, or problems are counted.
        self._intercepts = False
        self._given: dict[DispatchKey, ChosenConfig] = {}
        self._known: dict[tuple[Kernel, torch.device], KernelPolicy] = {}
        self._mode = mode
        self._entered = False
        self._source: PolicySource = StoreSource()
        self._tuner = tuner
        self._recorder: Recorder | None = None
        self._background: Any = None  # of workloads/background.py
        self._guard = CompileGuard()
        self._forcing = 0
        self._lock = threading.RLock()

    def config_for(
        self, kernel: Kernel, problem: Problem, device: torch.device
    ) -> Mapping[str, Any]:
        """Return the keyword arguments of the kernel's launch."""
        if self._intercepts:
            return self._intercepted(kernel, problem, device)
        try:
            return self._answers[kernel, problem, device]
        except KeyError:
            return self._first_call((kernel, problem, device))

    def answers_with(self, key: DispatchKey, config: Mapping[str, Any]) -> object:
        """Return the dictionary of answers, if calls find this config in it without interception;
        else None.
        """
        answers = self._answers
        return answers if not self._intercepts and answers.get(key) is config else None

    def stand(self, answers: object) -> bool:
        """Return whether calls find the same answers as when these were returned."""
        return answers is self._answers and not self._intercepts

    def answer_for(self, kernel: Kernel, problem: Problem, device: torch.device) -> ChosenConfig:
        """Return the config for a problem and where it comes from, as the next call finds it."""
        key = (kernel, problem, device)
        with self._lock:
            self._first_call(key)
            return self._given.get(key) or self._answer(key)[0]

    def given(self) -> dict[DispatchKey, ChosenConfig]:
        """Return every answer that is in use."""
        return dict(self._given)

    @contextmanager
    def forced(self, kernel: Kernel, config: Config) -> Iterator[None]:
        """Use a config for every call of a kernel that this thread or task makes in the block."""
        token = _forced.set({**(_forced.get() or {}), kernel: _kwargs(config)})
        self._count_forcing(1)
        try:
            yield
        finally:
            self._count_forcing(-1)
            _forced.reset(token)

    @property
    def mode(self) -> Mode:
        """The mode and its file; from the environment, until another is entered."""
        with self._lock:
            if self._mode is None:
                self._mode = modes.from_environment()
            return self._mode

    @property
    def source(self) -> PolicySource:
        """The source of answers."""
        return self._source

    def enter(self, mode: Mode) -> Mode:
        """Change the mode; return the one before."""
        with self._lock:
            before = self.mode
            if self._entered and before == mode:
                return before
            source, background = modes.source_of(mode), modes.background_of(mode)
            # What was answered so far is what serving may use: its code is there.
            kept = self._entered and mode.name == "serve" and source == self._source
            self._leave()
            if not kept:
                self._known, self._given, self._answers = {}, {}, {}
            self._begin(mode, source, background)
            return before

    def refresh(self) -> int:
        """Ask the source again, and swap the answers that have changed; return how many have.

        Where answers must not change, in the modes serve and pinned, this does nothing.
        """
        with self._lock:
            if not self._entered or self.mode.name in ("serve", "pinned"):
                return 0
            before = self._given
            self._known = {}
            self._source.reopen()
            given = {key: self._kernel_policy(key[0], key[2]).answer(key[1]) for key in before}
            changed = [key for key in given if given[key].config != before[key].config]
            new = {key: given[key].config.as_kwargs() for key in changed}
            self._given, self._answers = given, {**self._answers, **new}
            return len(changed)

    def forget(self) -> None:
        """Drop every answer and everything that was read; the next calls begin afresh."""
        with self._lock:
            self._known, self._given, self._answers = {}, {}, {}
            self._source.reopen()

    def _intercepted(
        self, kernel: Kernel, problem: Problem, device: torch.device
    ) -> Mapping[str, Any]:
        forced = _forced.get()
        if forced is not None and kernel in forced:
            return forced[kernel]
        key = (kernel, problem, device)
        recorder = self._recorder
        if recorder is not None and not capturing(device):
            recorder.count(key)
        answer = self._answers.get(key)
        return self._first_call(key) if answer is None else answer

    def _first_call(self, key: DispatchKey) -> Mapping[str, Any]:
        with self._lock:
            if not self._entered:
                mode = self.mode
                self._begin(mode, modes.source_of(mode), modes.background_of(mode))
            known = self._answers.get(key)
            if known is not None:
                return known
            answer, settled = self._answer(key)
            kwargs = answer.config.as_kwargs()
            if settled:
                self._guard.watch(key[0].name, key[0].functions)
                self._given[key] = answer
                self._answers[key] = kwargs
            return kwargs

    def _answer(self, key: DispatchKey) -> tuple[ChosenConfig, bool]:
        """Return the answer, and whether later calls may use it."""
        kernel, problem, device = key
        name = self.mode.name
        if name == "serve" and not warming():
            return self._warmed_answer(key), True
        answer = self._kernel_policy(kernel, device).answer(problem)
        if name != "tune" or answer.source == "exact":
            return answer, True
        if capturing(device):
            return answer, False
        self._tune(key)
        return self._kernel_policy(kernel, device).answer(problem), True

    def _warmed_answer(self, key: DispatchKey) -> ChosenConfig:
        """Choose among the configs that problems of the same kind were warmed with, whose code is
        there: the default if it is one of them, else that of the nearest problem.
        """
        kernel, problem, device = key
        fields = problem.fields()
        alike = [
            (p.fields(), answer.config)
            for (k, p, d), answer in self._given.items()
            if k is kernel and d == device and answer.source != "warmed"
            if same_kind(p.fields(), fields)
        ]
        target = target_of(device)
        default = kernel.default(problem, target.family, target.arch)
        if any(config == default for _, config in alike):
            return ChosenConfig(default, "warmed")
        for config in nearest_configs(alike, fields):
            if is_valid(kernel, target, config, fields):
                warn_once(
                    f"{kernel.name} was not warmed for all problems that are served: those run "
                    "with the config of the nearest one that was, which may be much slower"
                )
                return ChosenConfig(config, "warmed")
        raise NotWarmedError(kernel.name, f"nothing like the problem {problem_text(fields)}")

    def _tune(self, key: DispatchKey) -> None:
        kernel, problem, device = key
        tuner = self._tuner or modes.hook("tune")
        try:
            tuner(kernel, problem, device)
        except Exception as error:
            # The call has an answer without it: tuning must not take a program down.
            warn_once(
                f"{kernel.name} could not be tuned for {problem_text(problem.fields())} "
                f"({type(error).__name__}: {error}); it runs with what is known"
            )
        self._known.pop((kernel, device), None)
        self._source.reopen()

    def _kernel_policy(self, kernel: Kernel, device: torch.device) -> KernelPolicy:
        known = self._known.get((kernel, device))
        if known is None:
            known = self._source.kernel_policy(kernel, detect(device))
            self._known[kernel, device] = known
        return known

    def _begin(self, mode: Mode, source: PolicySource, background: Any) -> None:
        """Begin a mode, and start what it needs beside answers."""
        self._mode, self._source, self._entered = mode, source, True
        if mode.name == "serve":
            self._guard.install()
        elif background is not None:
            self._recorder = Recorder()
            tunes = mode.name == "background"
            self._background = background(self.refresh, self._recorder.take, tunes)
            self._background.start()
        self._set_intercepts()

    def _leave(self) -> None:
        self._guard.remove()
        if self._background is not None:
            self._background.stop()
        self._recorder = self._background = None
        self._set_intercepts()

    def _count_forcing(self, step: int) -> None:
        with self._lock:
            self._forcing += step
            self._set_intercepts()

    def _set_intercepts(self) -> None:
        self._intercepts = self._forcing > 0 or self._recorder is not None


@functools.lru_cache(maxsize=1024)
def _kwargs(config: Config) -> Mapping[str, Any]:
    """Return the same object for the same config: the call cache compares by identity."""
    return config.as_kwargs()


def capturing(device: torch.device) -> bool:
    """Return whether this thread captures a graph: then nothing may be tuned or counted."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
