"""The parent's side of screening: hands groups of configs to worker processes, collects results."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tritune.space import Config
from tritune.tuning.workers.process import (
    Answer,
    Death,
    Event,
    Progress,
    Worker,
    WorkerError,
    explain,
)

_TICK_SECONDS = 0.5
#: Nobody looks so rarely unless the whole group of processes was stopped for a while.
_SUSPENDED_SECONDS = 5.0


@dataclass(frozen=True)
class Result:
    """What compiling one config gave."""

    config: Config
    binary: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Keys of the entries that were kept for a pack.
    entries: Sequence[str] = ()
    seconds: float = 0.0
    #: One of `tritune.store.records.FAILURES`, or None.
    failure: str | None = None
    message: str = ""
    #: The reason why it was not compiled at all.
    implied: str | None = None


class _Group:
    """Configs that one worker compiles in a row."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = list(configs)
        self.done = 0

    def left(self) -> list[Config]:
        return self.configs[self.done :]


class ScreeningCrew:
    """Worker processes that compile groups of configs for a target, `jobs` at a time.

    A compiler that crashes or hangs costs its config; the rest of the group goes to another worker.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        jobs: int,
        timeout_seconds: float = 120.0,
        memory_bytes: int | None = 4 << 30,
        service: str = "tritune.screening.service:Screener",
    ) -> None:
        self._workers = [Worker(service, arguments, memory_bytes=memory_bytes) for _ in range(jobs)]
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> ScreeningCrew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()

    def screen(self, groups: Iterable[Sequence[Config]]) -> Iterator[Result]:
        """Results as they come. Whoever stops early closes the crew."""
        waiting = deque(_Group(configs) for configs in groups if configs)
        idle, running = list(self._workers), dict[Worker, _Group]()
        looked = time.monotonic()
        while waiting or running:
            lost, looked = time.monotonic() - looked, time.monotonic()
            if lost > _SUSPENDED_SECONDS:
                # This process did not run, so the compilers did not either.
                for worker in running:
                    worker.grant(lost)
            while waiting and idle:
                worker, group = idle.pop(), waiting.popleft()
                arguments = {"configs": [config.as_kwargs() for config in group.left()]}
                worker.post("screen", arguments, self._timeout_seconds)
                running[worker] = _Group(group.left())
            for worker, group in list(running.items()):
                for event in worker.poll():
                    yield from _results(group, event)
                    if not isinstance(event, Progress):
                        del running[worker]
                        idle.append(worker)
                        if group.left():
                            waiting.appendleft(group)
            _wait(running)


def _results(group: _Group, event: Event) -> Iterator[Result]:
    """What an event tells of the group's configs."""
    if isinstance(event, Progress):
        values = dict(event.value)
        number = values.pop("config")
        if values:
            group.done = number + 1
            yield Result(group.configs[number], **values)
    elif isinstance(event, Death) and not event.starting:
        config = group.configs[group.done]
        group.done += 1
        failure = event.failure
        yield Result(config, failure=failure.reason, message=failure.message)
    elif not isinstance(event, Answer):
        raise WorkerError(explain(event))


def _wait(running: Mapping[Worker, _Group]) -> None:
    if running:
        patience = min(worker.deadline for worker in running) - time.monotonic()
        files = [worker.fileno() for worker in running]
        select.select(files, [], [], min(_TICK_SECONDS, max(0.0, patience)))


def default_jobs() -> int:
    """One for each core."""
    return os.cpu_count() or 1
