"""The error for exceptions that no kernel should be able to cause."""

from __future__ import annotations

from tritune.errors import CompileError


def unexpected(operation: str, loc: object, error: Exception) -> CompileError:
    """Return the error to raise from an unexpected exception."""
    reason = (
        f"{type(error).__name__}: {error}. "
        "This is a fault of the CPU backend, not of the kernel: please report it"
    )
    return CompileError(operation, reason, str(loc))
