"""Answer from a reviewed file and nothing else: the same everywhere, bit for bit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tritune.kernels.identity import identity
from tritune.kernels.kernel import Kernel
from tritune.policy.kernel_policy import KernelPolicy
from tritune.policy.sources import warn_once
from tritune.store.winners_file import WinnersFile
from tritune.targets.device import Device


class PinnedSource:
    """A file that `tritune db export --winners` wrote, read once.

    A problem that the file does not name runs with the kernel's default. The file is obeyed even
    where the kernel's code, the driver or the compiler have changed since it was written: that it
    does not move is what it is for. There is a warning then.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)
        self.file = WinnersFile.read(path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PinnedSource) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def digest(self) -> str:
        """Return a digest that is equal for files with equal answers, whatever their spelling."""
        return hashlib.sha256(self.file.text().encode()).hexdigest()[:32]

    def reopen(self) -> None:
        """Do nothing: a pinned file is read once."""

    def kernel_policy(self, kernel: Kernel, device: Device) -> KernelPolicy:
        entry = self._entry_for(kernel.name, device)
        winners = [
            w for w in self.file.winners if w.task.kernel == kernel.name and w.task.device == entry
        ]
        now = identity(kernel, device.target)
        if any(winner.task.identity != now for winner in winners):
            warn_once(
                f"{self.path}: {kernel.name} or its compiler has changed since this file was "
                "written; its configs are used all the same. Tune and export again to be sure"
            )
        exact = {winner.task.problem: winner.config for winner in winners}
        return KernelPolicy(kernel, device.target, exact.get, lambda: None)

    def _entry_for(self, kernel: str, device: Device) -> str | None:
        """Return whose winners to use: this device's, or those of one with its name and target."""
        mine = device.fingerprint
        there = sorted({w.task.device for w in self.file.winners if w.task.kernel == kernel})
        if mine in there or not there:
            return mine if there else None
        for fingerprint in there:
            other = self.file.devices[fingerprint]
            if (other.name, other.target) == (device.name, device.target):
                warn_once(
                    f"{self.path}: {device.name} was reviewed with other cores, memory or driver "
                    f"({fingerprint}, here {mine}); its configs are used all the same"
                )
                return fingerprint
        warn_once(
            f"{self.path} has nothing for {kernel} on {device.name} ({mine}): "
            "it runs with its default config"
        )
        return None
