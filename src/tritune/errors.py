"""The errors that tritune raises on purpose. Each says what was given and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ' (did you mean X?)' if a known X is similar."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is not known: the nearest one, and all of them."""
    return f"no {what} {name!r}{nearest(name, known)}; there are: {', '.join(known)}"


def not_allowed(what: str, given: str, allowed: Iterable[str]) -> str:
    """Return the message for a word that is not allowed."""
    return f"{what} {given!r}{nearest(given, allowed)}, allowed: {', '.join(allowed)}"


class TrituneError(Exception):
    """The base of every error that tritune raises on purpose."""


class ArgumentError(TrituneError, ValueError):
    """A function was called with arguments that it does not take; all reasons are given."""


class CompileError(TrituneError):
    """A kernel cannot be compiled for the CPU: `operation` at `loc`, for `reason`."""

    def __init__(self, operation: str, reason: str, loc: str = "") -> None:
        # The base keeps the three apart, so that the error survives pickling and copying. Called by
        # name: a class that is an error of Triton's too has a base that takes other arguments.
        Exception.__init__(self, operation, reason, loc)
        self.operation = operation
        self.reason = reason
        self.loc = loc

    def __str__(self) -> str:
        place = f" at {self.loc}" if self.loc else ""
        return f"{self.operation}{place} cannot be compiled for the CPU: {self.reason}"


class DeviceAssertionError(TrituneError):
    """`tl.device_assert` failed in a kernel; raised once the launch has ended."""


class LaunchError(TrituneError):
    """A kernel cannot be launched with what it was given."""


class DamagedObjectError(LaunchError):
    """A cached object file is not what the compiler wrote."""


class DeviceTakenError(TrituneError):
    """Another process measures on the device, and the caller did not want to wait."""
