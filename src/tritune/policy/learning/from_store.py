"""Learning from a store, and what is said about it: the lines that `tritune db show` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritune.kernels.identity import identity
from tritune.kernels.kernel import Kernel
from tritune.policy.kernel_policy import is_valid
from tritune.policy.learning import measured, saved
from tritune.policy.learning.learned import LearnedPolicy, fit
from tritune.targets.device import Device

if TYPE_CHECKING:
    from tritune.store import Store


def learn(store: Store, kernel: Kernel, device: Device) -> LearnedPolicy | None:
    """Learn from all that a store holds of a kernel on a device; None if it holds nothing."""
    version = identity(kernel, device.target)
    rows = measured.read(store, kernel.name, version, device.fingerprint)
    return fit(
        rows,
        lambda config, fields: is_valid(kernel, device.target, config, fields),
        kernel.name,
        version,
        device.fingerprint,
    )


def learn_and_save(store: Store, kernel: Kernel, device: Device) -> LearnedPolicy | None:
    """Learn, and put the result where calls find it: for the end of a tuning run."""
    policy = learn(store, kernel, device)
    if policy is not None:
        saved.save(store, policy)
    return policy


def describe(store: Store, kernel: Kernel, device: Device) -> list[str]:
    """Describe what was learned of a kernel on a device, in lines for people."""
    version = identity(kernel, device.target)
    policy = saved.load(store, kernel.name, version, device.fingerprint)
    rows = measured.read(store, kernel.name, version, device.fingerprint)
    if policy is None:
        count = f"{len(rows)} problem{'s' * (len(rows) != 1)}"
        return [f"{count} measured, nothing learned yet"] if rows else []
    lines = policy.describe()
    if measured.digest(rows) != policy.data:
        lines.append("more was measured since: the next tuning run learns from it")
    return lines
