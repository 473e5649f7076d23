"""Worker processes that may die: the parent's side of `tritune.tuning.workers.child`.

The child is started afresh, never forked: neither torch's threads nor a GPU's driver survive a
fork. It is killed when the thread that started it ends, which is how Linux counts parents.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import IO, Any

from tritune import env
from tritune.errors import TrituneError
from tritune.tuning.workers.child import MESSAGE_SIZE
from tritune.tuning.workers.failures import Failure, failure_of_exit

#: How often a waiting parent looks whether the process still lives: its pipe may outlive it in the
#: hands of a process that it started.
TICK_SECONDS = 0.5
_STDERR_BYTES = 16384
_READ_BYTES = 1 << 20


class WorkerError(TrituneError):
    """A worker process cannot do its work at all, whatever it is asked."""


@dataclass(frozen=True)
class Report:
    """Something that the service reports before it answers."""

    value: Any


@dataclass(frozen=True)
class Reply:
    value: Any


@dataclass(frozen=True)
class Death(Failure):
    """The process ended, or was killed for taking too long, before it answered."""


class Worker:
    """A killable process with a service in it, started when first needed and again after a death.

    `service` names a class as "package.module:Class"; it is made with `arguments` and a function
    `report`, which sends something to the parent. Whatever crosses the border is pickled.
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
        self._service, self._arguments = service, dict(arguments)
        self._memory_bytes = memory_bytes
        self._start_seconds = start_seconds
        self._child: _Child | None = None
        #: Whether the service is made, and whether it works on a request.
        self._ready = self._busy = False
        self._timeout_seconds = 0.0
        #: When (by `time.monotonic`) the present step has begun, and when it has taken too long.
        self.began = self.deadline = 0.0
        self._paused_at: float | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Return the process, if there is one."""
        return self._child.process.pid if self._child else None

    def fileno(self) -> int:
        """Return the file to wait for messages with; the worker must be alive."""
        if self._child is None:
            raise WorkerError("a worker that was never asked anything has no messages")
        return self._child.connection.fileno()

    def call(
        self,
        method: str,
        arguments: Mapping[str, Any],
        timeout_seconds: float,
        on_report: Callable[[Any], None] = lambda value: None,
    ) -> Any:
        """Ask and wait; return the answer, or the `Death` of the process.

        The time limit is for each step: a report begins another. WorkerError if the service
        refuses, or if the process dies before it takes the request.
        """
        try:
            self.post(method, arguments, timeout_seconds)
            while True:
                for event in self.poll():
                    if not isinstance(event, Report):
                        return event.value if isinstance(event, Reply) else event
                    on_report(event.value)
                wait([self.fileno()], min(TICK_SECONDS, max(0.0, self.deadline - time.monotonic())))
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
            self._child = _Child()
            self._start_service()
        self._child.forget_stderr()
        self._child.send(("call", (method, dict(arguments))))
        self._busy = True
        self._begin_step()

    def poll(self) -> Iterator[Report | Reply | Death]:
        """Yield what has happened since the last call, without waiting.

        WorkerError if the service refuses, or if the process died before it took the request.
        """
        child = self._child
        if child is None or not self._busy:
            return
        # The order matters: what a process wrote before it ended must not be lost.
        ended = child.process.poll() is not None
        for kind, value in child.messages():
            event = self._event(kind, value)
            if event is not None:
                yield event
        if self._busy and (ended or child.closed):
            yield self._died(failure_of_exit(*child.kill()))
        elif self._busy and self._paused_at is None and time.monotonic() > self.deadline:
            yield self._died(Failure("timeout", f"not done after {self._limit_seconds:g} s"))

    def pause(self) -> None:
        """Halt the process where it is; its time limit waits."""
        if self._child is not None and self._paused_at is None:
            self._paused_at = time.monotonic()
            self._child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        if self._paused_at is not None:
            self.deadline += time.monotonic() - self._paused_at
            self._paused_at = None
            if self._child is not None:
                self._child.signal(signal.SIGCONT)

    def switch_to(self, arguments: Mapping[str, Any]) -> None:
        """Have the service made anew if its arguments are others, in the same process: to start
        another would cost seconds.
        """
        if self._busy:
            raise WorkerError("a worker that is busy cannot switch to another service")
        if arguments != self._arguments:
            self._arguments = dict(arguments)
            if self._child is not None:
                self._start_service()

    def close(self) -> None:
        """End the process at once. The next request starts another."""
        if self._child is not None:
            self._child.kill()
        self._child, self._busy, self._ready, self._paused_at = None, False, False, None

    @property
    def _limit_seconds(self) -> float:
        return self._timeout_seconds if self._ready else self._start_seconds

    def _begin_step(self) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + self._limit_seconds

    def _start_service(self) -> None:
        assert self._child is not None
        # Programs add to the path as they go; what is unpickled may need it.
        self._child.send(("path", _path()))
        self._child.send(("start", (self._service, self._arguments, self._memory_bytes)))
        self._ready = False

    def _event(self, kind: str, value: Any) -> Report | Reply | None:
        if kind == "report":
            if self._ready:
                self._begin_step()
            return Report(value)
        if kind == "ready":
            self._ready = True
            self._begin_step()
            return None
        self._busy = False
        if kind == "answer":
            return Reply(value)
        if not self._ready:  # the service could not be made
            self.close()
        raise WorkerError(value)

    def _died(self, failure: Failure) -> Death:
        ready = self._ready
        self.close()
        if not ready:
            raise WorkerError(f"a worker process died before it could begin: {failure.message}")
        return Death(failure.reason, failure.message)


class _Child:
    """The process itself and its pipe."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self._stderr: IO[bytes] = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115
        #: Whether the other end of the pipe is closed.
        self.closed = False
        self._received = bytearray()
        command = [sys.executable, "-m", "tritune.tuning.workers.child"]
        try:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(),),
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
            self.connection.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()

    def send(self, message: tuple[str, Any]) -> None:
        # A process that is dead is noticed when its answer is awaited.
        with contextlib.suppress(ConnectionError):
            self.connection.send(message)

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Yield the messages that have come in, without waiting for the rest of another: the
        process may have ended in the middle of one, with the pipe in the hands of its children.
        """
        while not self.connection.closed and self._receive():
            while message := self._next_message():
                yield message
                if self.connection.closed:
                    return

    def _receive(self) -> bool:
        """Read what is in the pipe, up to a limit; return whether that is anything."""
        try:
            if self.closed or not self.connection.poll():
                return False
            data = os.read(self.connection.fileno(), _READ_BYTES)
        except OSError:
            data = b""
        self.closed = not data
        self._received += data
        return not self.closed

    def _next_message(self) -> tuple[str, Any] | None:
        """Take the first message out of what was received; None if it is not complete."""
        begin = MESSAGE_SIZE.size
        if len(self._received) < begin:
            return None
        end = begin + MESSAGE_SIZE.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message: tuple[str, Any] = pickle.loads(self._received[begin:end])
        del self._received[:end]
        return message

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def forget_stderr(self) -> None:
        self._stderr.truncate(0)

    def kill(self) -> tuple[int, str]:
        """End it and whatever it has started: its exit status and the end of its stderr.

        A process that is just dying of its own is given the time to do so, for its exit status.
        """
        if self.closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(TICK_SECONDS)
        self.signal(signal.SIGKILL)
        status = self.process.wait()
        if self._stderr.closed:
            return status, ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        text = self._stderr.read().decode(errors="replace")
        self._stderr.close()
        self.connection.close()
        return status, text


def _path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]
