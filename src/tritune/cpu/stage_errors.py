"""One kind of error for whatever goes wrong in the backend's stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from triton.runtime.errors import PTXASError

from tritune.cpu import ttir
from tritune.cpu.faults import unexpected
from tritune.errors import CompileError

Stage = Callable[[Any, dict[str, Any]], Any]


class KernelError(CompileError, PTXASError):
    """A CompileError that `triton.autotune` survives: it leaves the config out and goes on.

    Autotune does so for the few errors of Triton's own that say that a config cannot be compiled;
    PTXASError is the one that is about the code and not about a GPU's resources.
    """

    @property
    def error_message(self) -> str:
        """Return the text, as PTXASError does."""
        return str(self)


def guarded(stages: Mapping[str, Stage]) -> dict[str, Stage]:
    """Wrap the stages so that they raise a KernelError for any exception but MemoryError."""
    source: list[Any] = []

    def guard(stage: Stage) -> Stage:
        @functools.wraps(stage)
        def run(module: Any, metadata: dict[str, Any]) -> Any:
            # The first stage's module knows where the kernel is; the others' may be plain LLVM IR.
            source.append(module)
            try:
                return stage(module, metadata)
            except MemoryError:
                raise
            except CompileError as error:
                found, cause = error, error.__cause__
            except Exception as error:
                found, cause = unexpected(*_entry(source[0]), error), error
            raise KernelError(*found.args).with_traceback(found.__traceback__) from cause

        return run

    return {extension: guard(stage) for extension, stage in stages.items()}


def _entry(module: Any) -> tuple[str, str]:
    """Return the kernel's function and its place, for an error that knows no operation."""
    try:
        entry = ttir.parse(str(module)).entry
    except Exception:
        # What cannot be read does not say where it is from.
        return "the kernel", ""
    return f"tt.func @{entry.name}", str(entry.loc)
