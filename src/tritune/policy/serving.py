"""The `serve` mode: nothing is compiled after warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tritune.errors import TrituneError


class NotWarmedError(TrituneError):
    """Raised when a call in serve mode needs code that was not compiled before."""

    def __init__(self, kernel: str, needed: str) -> None:
        super().__init__(kernel, needed)
        self.kernel = kernel
        self.needed = needed

    def __str__(self) -> str:
        return (
            f"{self.kernel}: serve mode compiles nothing, and {self.needed} was not warmed: make "
            "such a call once inside `with tritune.warm():` before serving, or leave serve mode"
        )


# Of this thread or task only: while one warms up, another must not begin to compile.
_warming: ContextVar[bool] = ContextVar("tritune_warming", default=False)


def warming() -> bool:
    return _warming.get()


@contextmanager
def warm() -> Iterator[None]:
    """Let serve mode compile in the block: make the calls here that will be served later.

    with tritune.mode("serve"):
        with tritune.warm():
            model(largest_batch)
        serve(model)

    It holds for the thread or task that enters the block.
    """
    token = _warming.set(True)
    try:
        yield
    finally:
        _warming.reset(token)


class CompileGuard:
    """Refuses to compile the functions of tritune's kernels outside of warm-up.

    Other Triton programs in the process are left alone. Triton calls the hook before it compiles
    or loads, not for code that the process has loaded already.
    """

    def __init__(self) -> None:
        self._kernels: dict[int, str] = {}
        self._replaced: Any = None
        self._installed = False

    def watch(self, kernel: str, functions: tuple[Any, ...]) -> None:
        """Refuse to compile these functions of a kernel from now on."""
        self._kernels.update((id(function), kernel) for function in functions)

    def install(self) -> None:
        from triton import knobs

        if not self._installed:
            self._installed = True
            self._replaced = knobs.runtime.jit_cache_hook
            knobs.runtime.jit_cache_hook = self._before_compiling

    def remove(self) -> None:
        from triton import knobs

        # Another hook may have replaced ours and call it still: it does nothing then.
        self._installed = False
        if knobs.runtime.jit_cache_hook == self._before_compiling:
            knobs.runtime.jit_cache_hook = self._replaced

    def _before_compiling(self, *args: Any, **info: Any) -> Any:
        function = getattr(info.get("fn"), "jit_function", None)
        kernel = self._kernels.get(id(function))
        if kernel is not None and self._installed and not warming():
            raise NotWarmedError(kernel, f"{info.get('repr', 'a function of it')}")
        before: Callable[..., Any] | None = self._replaced
        return before(*args, **info) if before is not None else None
