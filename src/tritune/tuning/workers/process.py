"""Worker processes that may die: the parent's side of `tritune.tuning.workers.child`.

The child is started afresh, never forked: neither torch's threads nor a GPU's driver survive a
fork. It is killed when the thread that started it ends, which is how Linux counts parents.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from tritune import env
from tritune.errors import TrituneError
from tritune.tuning.workers.failures import Failure, failure_of_exit

#: How often a waiting parent looks whether the process still lives: its pipe may outlive it in the
#: hands of a process that it started.
_TICK_SECONDS = 0.5
_STDERR_BYTES = 16384


class WorkerError(TrituneError):
    """A worker process cannot do its work at all, whatever it is asked."""


@dataclass(frozen=True)
class Progress:
    """What the worker is about to do, or has just done."""

    value: Any


@dataclass(frozen=True)
class Answer:
    value: Any


@dataclass(frozen=True)
class Refusal:
    """The service raised an error instead of answering."""

    message: str


@dataclass(frozen=True)
class Death:
    """The process ended, or was killed for taking too long, before it answered."""

    failure: Failure
    #: It never got as far as to take a request.
    starting: bool


Event = Progress | Answer | Refusal | Death


class Worker:
    """A killable process with a service in it, started when first needed and again after a death.

    `service` names a class as "package.module:Class"; it is made with `arguments` and a function
    `report`, with which it says what it does. Arguments and answers are whatever JSON can hold.
    One request at a time: `call`, or `post` and then `poll` until the request is over.
    """

    def __init__(
        self,
        service: str,
        arguments: Mapping[str, Any],
        *,
        memory_bytes: int | None = None,
        start_seconds: float = 120.0,
    ) -> None:
        self._start_message: dict[str, Any] = {
            "service": service,
            "arguments": dict(arguments),
            "memory_bytes": memory_bytes,
        }
        self._start_seconds = start_seconds
        self._child: _Child | None = None
        self._ready = False
        self._busy = False
        self._timeout_seconds = 0.0
        self._deadline = 0.0
        #: When (by `time.monotonic`) the worker took up its last request.
        self.began = 0.0
        self._stopped_at: float | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Return the process, if there is one."""
        return self._child.process.pid if self._child else None

    @property
    def deadline(self) -> float:
        """Return when (by `time.monotonic`) the present step has taken too long."""
        return self._deadline

    def fileno(self) -> int:
        """To wait for messages with `select`; the worker must be alive."""
        if self._child is None:
            raise WorkerError("a worker that was never asked anything has no messages")
        return self._child.answers

    def call(
        self,
        method: str,
        arguments: Mapping[str, Any],
        timeout_seconds: float,
        on_progress: Callable[[Any], None] | None = None,
    ) -> Any:
        """Ask and wait: the answer, or the `Failure` that ended the process.

        The time limit is for each step: progress renews it. WorkerError if the service refuses, or
        if the process dies before it takes the request.
        """
        try:
            self.post(method, arguments, timeout_seconds)
            while True:
                for event in self.wait():
                    if isinstance(event, Progress):
                        if on_progress is not None:
                            on_progress(event.value)
                    elif isinstance(event, Answer):
                        return event.value
                    elif isinstance(event, Death) and not event.starting:
                        return event.failure
                    else:
                        raise WorkerError(explain(event))
        except BaseException:
            self.close()  # the request may still run, and its answer would meet the next one
            raise

    def post(self, method: str, arguments: Mapping[str, Any], timeout_seconds: float) -> None:
        """Ask; `poll` tells what became of it."""
        if self._busy:
            raise WorkerError("a worker takes one request at a time")
        self._timeout_seconds = timeout_seconds
        if self._child is not None and self._child.process.poll() is not None:
            self.close()  # died while it had nothing to do
        if self._child is None:
            self._child = _Child(self._start_message)
            self._ready = False
        self._child.forget_stderr()
        self._child.send({"method": method, "arguments": dict(arguments)})
        self._busy = True
        self.began = time.monotonic()
        self._renew(self._timeout_seconds if self._ready else self._start_seconds)

    def wait(self) -> list[Event]:
        """Events, as soon as there are any."""
        while True:
            events = self.poll()
            if events:
                return events
            patience = min(_TICK_SECONDS, max(0.0, self._deadline - time.monotonic()))
            select.select([self.fileno()], [], [], patience)

    def poll(self) -> list[Event]:
        """Return what has happened since the last call, without waiting."""
        if self._child is None or not self._busy:
            return []
        # The order matters: what a process wrote before it ended must not be lost.
        ended = self._child.process.poll() is not None
        events = [event for line in self._child.lines() if (event := self._event(json.loads(line)))]
        if self._busy and (ended or self._child.ended):
            events.append(self._bury())
        elif self._busy and self._stopped_at is None and time.monotonic() > self._deadline:
            events.append(self._time_out())
        return events

    def stop(self) -> None:
        """Halt the process where it is; its time limit waits."""
        if self._child is not None and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            self._child.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `stop`."""
        if self._stopped_at is not None:
            self._deadline += time.monotonic() - self._stopped_at
            self._stopped_at = None
            if self._child is not None:
                self._child.signal(signal.SIGCONT)

    def grant(self, seconds: float) -> None:
        """Give the present step more time."""
        self._deadline += seconds

    def turn_to(self, arguments: Mapping[str, Any]) -> None:
        """Have the service made anew if its arguments are others, in the same process: to start
        another would cost seconds.
        """
        if self._busy:
            raise WorkerError("a worker that is busy cannot turn to something else")
        if arguments == self._start_message["arguments"]:
            return
        self._start_message["arguments"] = dict(arguments)
        if self._child is not None:
            self._child.send_path()
            self._child.send(self._start_message)
            self._ready = False

    def close(self) -> None:
        """End the process at once. The next request starts another."""
        if self._child is not None:
            self._child.kill()
        self._child, self._busy, self._ready, self._stopped_at = None, False, False, None

    def _event(self, message: Mapping[str, Any]) -> Event | None:
        ((kind, value),) = message.items()
        if kind == "ready":
            self._ready = True
            self.began = time.monotonic()
            self._renew(self._timeout_seconds)
            return None
        if kind == "progress":
            if self._ready:
                self._renew(self._timeout_seconds)
            return Progress(value)
        self._busy = False
        if kind == "answer":
            return Answer(value)
        if not self._ready:  # the service could not be made
            self.close()
        return Refusal(value)

    def _renew(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def _bury(self) -> Death:
        assert self._child is not None
        status, stderr = self._child.kill()
        death = Death(failure_of_exit(status, stderr), starting=not self._ready)
        self.close()
        return death

    def _time_out(self) -> Death:
        limit = self._timeout_seconds if self._ready else self._start_seconds
        death = Death(Failure("timeout", f"not done after {limit:g} s"), starting=not self._ready)
        self.close()
        return death


def explain(event: Event) -> str:
    """Return why a worker is of no use, for whoever has to be told."""
    if isinstance(event, Refusal):
        return event.message
    if isinstance(event, Death):
        return f"a worker process died before it could begin: {event.failure.message}"
    return str(event)


class _Child:
    """The process itself and its pipes."""

    def __init__(self, start_message: Mapping[str, Any]) -> None:
        requests_out, self._requests = os.pipe()
        self.answers, answers_in = os.pipe()
        self._stderr: IO[bytes] = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tritune.tuning.workers.child"),
                    *(str(requests_out), str(answers_in), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(requests_out, answers_in),
                env={
                    **os.environ,
                    # What holds for the program's calls is not meant for those that tune it.
                    env.MODE.name: "default",
                    env.AUTOTUNE.name: "0",
                    "PYTHONPATH": os.pathsep.join(_path()),
                    "PYTHONSAFEPATH": "1",
                },
                start_new_session=True,  # a group of its own, to be killed as a whole
            )
        except BaseException:
            os.close(self._requests)
            os.close(self.answers)
            self._stderr.close()
            raise
        finally:
            os.close(requests_out)
            os.close(answers_in)
        os.set_blocking(self.answers, False)
        self._unread = b""
        self.ended = False
        self.send_path()
        self.send(start_message)

    def send_path(self) -> None:
        """Tell where to look for modules: programs add to that as they go."""
        self.send({"path": _path()})

    def send(self, message: Mapping[str, Any]) -> None:
        # A process that is dead is noticed when its answer is awaited.
        with contextlib.suppress(BrokenPipeError):
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(self._requests, data) :]

    def lines(self) -> list[bytes]:
        """Return the whole lines that have come in."""
        while not self.ended:
            try:
                chunk = os.read(self.answers, 1 << 16)
            except BlockingIOError:
                break
            self.ended = not chunk
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        return lines

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def forget_stderr(self) -> None:
        self._stderr.truncate(0)

    def kill(self) -> tuple[int, str]:
        """End it and whatever it has started: its exit status and the end of its stderr.

        A process that is just dying of its own is given the time to do so, for its exit status.
        """
        if self.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_TICK_SECONDS)
        self.signal(signal.SIGKILL)
        status = self.process.wait()
        if self._stderr.closed:
            return status, ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        text = self._stderr.read().decode(errors="replace")
        self._stderr.close()
        os.close(self._requests)
        os.close(self.answers)
        return status, text


def _path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]
