"""The sources of answers: the store, or a reviewed file.

Whatever is wrong with a store is a warning and a miss: calls can be answered without it.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Protocol

from tritune.errors import TrituneError
from tritune.kernels.identity import identity
from tritune.kernels.kernel import Kernel
from tritune.policy.kernel_policy import KernelPolicy, Learned
from tritune.space import Config
from tritune.store.errors import MissingStoreError
from tritune.store.records import Task
from tritune.targets.device import Device

if TYPE_CHECKING:
    from tritune.store import Store

_warned: set[str] = set()


class PolicyWarning(UserWarning):
    """A store or file cannot be used; calls are answered without it."""


def warn_once(message: str) -> None:
    """Warn once per process, however often this is called with the message."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, PolicyWarning, stacklevel=2)


class PolicySource(Protocol):
    def kernel_policy(self, kernel: Kernel, device: Device) -> KernelPolicy:
        """Return the answers for a kernel on a device; nothing is read before one is asked for."""

    def reopen(self) -> None:
        """Look again: results may have been added."""

    def digest(self) -> str | None:
        """Return a digest of all answers; None where they can change at any time."""


class StoreSource:
    """The store that TRITUNE_STORE names, or another; opened for reading, when first needed."""

    def __init__(self, location: str | None = None) -> None:
        self.location = location
        self._store: Store | None = None
        self._unusable = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreSource) and self.location == other.location

    def __hash__(self) -> int:
        return hash(self.location)

    def reopen(self) -> None:
        """Look anew at what lies there: the variable may name another store, or the file be one."""
        if self._store is not None:
            self._store.close()
        self._store, self._unusable = None, False

    def digest(self) -> None:
        return None

    def kernel_policy(self, kernel: Kernel, device: Device) -> KernelPolicy:
        version, fingerprint = identity(kernel, device.target), device.fingerprint

        def exact(problem: str) -> Config | None:
            return self._winner(Task(kernel.name, version, problem, fingerprint))

        @functools.cache
        def learned() -> Learned | None:
            return self._learned(kernel.name, version, fingerprint)

        return KernelPolicy(kernel, device.target, exact, learned)

    def _winner(self, task: Task) -> Config | None:
        store = self._opened()
        if store is None:
            return None
        try:
            winner = store.winner(task)
        except Exception as error:
            self._give_up(error)
            return None
        return None if winner is None else winner.config

    def _learned(self, kernel: str, version: str, fingerprint: str) -> Learned | None:
        from tritune.policy.learning import saved

        store = self._opened()
        if store is None:
            return None
        try:
            return saved.load(store, kernel, version, fingerprint)
        except TrituneError as error:
            warn_once(f"{error}. Until then, problems that were not tuned run with the default")
            return None

    def _opened(self) -> Store | None:
        if self._store is None and not self._unusable:
            from tritune.store import Store

            try:
                self._store = Store(self.location, read_only=True)
            except MissingStoreError:
                self._unusable = True  # nothing was tuned yet, which is no fault
            except Exception as error:
                self._give_up(error)
        return None if self._unusable else self._store

    def _give_up(self, error: Exception) -> None:
        # Whatever it is: no call may fail for want of a store.
        self._unusable = True
        warn_once(f"the store is left out, and kernels run with their defaults: {error}")
