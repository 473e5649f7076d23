"""Tune in idle time: a thread records problems, and a process of low priority tunes them.

The program's own calls only count the problems they meet. At an interval the thread writes the
counts into the store, starts the process if there is something to tune, and swaps new winners in.
One such process runs for a store at a time, whichever program started it, and ends with that
program.

    python -m tritune.workloads.background --device cuda:0

tunes the recorded problems without such a program, and ends.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import torch

from tritune import env
from tritune.errors import DeviceTakenError
from tritune.policy.recorder import DispatchKey
from tritune.policy.sources import warn_once
from tritune.store import Store
from tritune.store.location import locate
from tritune.store.records import problem_text
from tritune.targets.device import detect

#: How often the thread looks, unless TRITUNE_BACKGROUND_SECONDS says otherwise.
INTERVAL_SECONDS = 60.0
#: How long one process may tune before it makes room for another look.
BUDGET_SECONDS = 600.0
#: How long it may take to end when it is told to.
GRACE_SECONDS = 5.0
#: The exit status of a process that did not tune because another one measures on the device.
TRY_LATER = os.EX_TEMPFAIL


class Background:
    """The thread of a program in background mode; in record mode, it only records."""

    def __init__(
        self,
        refresh: Callable[[], int],
        take_counts: Callable[[], dict[DispatchKey, int]],
        tunes: bool = True,
    ) -> None:
        self._tunes = tunes
        self._refresh = refresh
        self._take_counts = take_counts
        self._devices: set[torch.device] = set()
        self._stopped = threading.Event()
        self._step_lock = threading.Lock()
        self.tuners: dict[torch.device, TunerProcess] = {}

    def start(self) -> None:
        interval = env.BACKGROUND_SECONDS.read() or INTERVAL_SECONDS
        thread = threading.Thread(
            target=self._run, args=(interval,), name="tritune-background", daemon=True
        )
        thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Record the counts and end the process; new winners are no longer swapped in."""
        atexit.unregister(self.stop)
        self._stopped.set()
        with self._step_lock:
            self._write_counts()
            for tuner in self.tuners.values():
                tuner.end()

    def step(self) -> int:
        """Record problems, start the tuner, swap winners in; return how many answers changed."""
        with self._step_lock:
            if self._stopped.is_set():
                return 0
            met = self._write_counts()
            if not self._tunes:
                return 0
            for device in self._devices:
                tuner = self.tuners.setdefault(device, TunerProcess(device))
                tuner.look(met)
        # Without the lock: a change of the mode holds the policy's lock and waits for this one.
        return self._refresh()

    def _run(self, interval_seconds: float) -> None:
        while not self._stopped.wait(interval_seconds):
            try:
                self.step()
            except Exception as error:
                # One error must not end the thread, nor many errors fill the program's log.
                warn_once(f"background tuning: {type(error).__name__}: {error}")

    def _write_counts(self) -> bool:
        """Write the counts into the store; return whether there were any."""
        counts = self._take_counts()
        if not counts:
            return False
        self._devices |= {device for _, _, device in counts}
        try:
            with Store() as store:
                for device in self._devices:
                    store.add_device(detect(device))
                store.record_problems(
                    (kernel.name, problem_text(p.fields()), detect(device).fingerprint, count)
                    for (kernel, p, device), count in counts.items()
                )
        except Exception as error:
            warn_once(f"the problems that were met could not be recorded: {error}")
        return True


class TunerProcess:
    """The process that tunes for one device: started when problems were met, one at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def look(self, met: bool) -> None:
        """Start the process if problems were met and none is running, or if it found the device
        taken; warn if it has failed.
        """
        if self._process is not None and self._process.poll() is not None:
            met = met or self._process.returncode == TRY_LATER
            self._say_if_failed()
            self._process = None
        if met and self._process is None:
            self._start()

    def end(self) -> None:
        """End the process as if it was interrupted: its results are in the store."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process = None

    def _start(self) -> None:
        command = [sys.executable, "-m", "tritune.workloads.background"]
        # Its standard input ends when this program does, however it ends.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it outlives this call
        self._process = subprocess.Popen(
            [*command, "--device", str(self.device), "--until-input-ends"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, env.MODE.name: "default"},
            start_new_session=True,
        )

    def _say_if_failed(self) -> None:
        assert self._process is not None and self._errors is not None
        if self._process.returncode not in (0, TRY_LATER):
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines() or ["?"]
            warn_once(f"background tuning on {self.device} failed: {lines[-1]}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tritune.workloads.background",
        description="Tune the problems that programs have met, at the lowest priority.",
    )
    parser.add_argument("--device", default="cpu", help="such as cpu or cuda:0")
    parser.add_argument("--store", help="a file or a URL; by default what TRITUNE_STORE says")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--until-input-ends", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.until_input_ends:
        threading.Thread(target=_end_with_input, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lowest_priority()
    # Not above: importing it takes time that a program with this thread need not spend.
    from tritune.workloads.tuning import tune_recorded

    with contextlib.suppress(KeyboardInterrupt), alone(options.store) as is_alone:
        if is_alone:
            try:
                tune_recorded(options.store, options.device, options.budget)
            except DeviceTakenError:
                sys.exit(TRY_LATER)


def lowest_priority() -> None:
    """Run at idle priority, as far as the system allows."""
    with contextlib.suppress(OSError):
        os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def alone(store: str | None) -> Iterator[bool]:
    """Yield whether no other process of this user is tuning for the store.

    The claim is a lock on a file; the system releases it when the process ends.
    """
    location = locate(store)
    path = location.beside("background")
    if location.path is None:
        # A home may be shared by machines, which need not wait for each other.
        path = Path(tempfile.gettempdir(), f"tritune-{os.getuid()}-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _end_with_input() -> None:
    # Not sys.stdin: a thread that reads it while the interpreter ends would abort the process.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
