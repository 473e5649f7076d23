"""The policy of this process, which the ops ask and users configure."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, overload

from tritune.policy import agreement
from tritune.policy.modes import Mode, mode_named
from tritune.policy.policy import Policy

POLICY = Policy()

config_for = POLICY.config_for
answer_for = POLICY.answer_for
forced = POLICY.forced
refresh = POLICY.refresh
forget = POLICY.forget


class ModeContext:
    """A mode that was entered; as a context manager it returns to the one before."""

    def __init__(self, mode: str, before: Mode) -> None:
        self.mode = mode
        self._before = before

    def __repr__(self) -> str:
        return f"<tritune mode {self.mode!r}>"

    def __enter__(self) -> ModeContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        POLICY.enter(self._before)


@overload
def mode() -> str: ...
@overload
def mode(name: str, *, pinned: str | os.PathLike[str] | None = None) -> ModeContext: ...
def mode(
    name: str | None = None, *, pinned: str | os.PathLike[str] | None = None
) -> str | ModeContext:
    """Say how this process chooses configs, for good or for a `with` block; or ask how it does.

    "default": from the store; what is unknown runs with a learned or default config.
    "serve": as default, but nothing is compiled outside of `tritune.warm()`.
    "tune": a problem without a winner is tuned when it is first met. The call waits for it.
    "background": problems are recorded, and tuned by a process of low priority.
    "record": as default; problems are recorded for `tritune tune --recorded`, nothing is tuned.
    "pinned": from a reviewed file and nothing else: `pinned`, or TRITUNE_PINNED. "serve" reads
        such a file too, if there is one.

    TRITUNE_MODE says how a process begins. A mode holds for the whole process.
    """
    if name is None:
        return POLICY.mode.name
    return ModeContext(name, POLICY.enter(mode_named(name, pinned)))


def verify_agreement(group: Any = None) -> None:
    """Raise unless all ranks of torch.distributed choose alike: for tensor parallelism, where ranks
    that compute differently drift apart. Every rank has to call it; alone it does nothing.
    """
    agreement.verify_agreement(POLICY, group)
