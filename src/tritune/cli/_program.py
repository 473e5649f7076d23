"""Run a Python program as `python` runs it.

The standard library's runpy puts the old `__main__` back before the program's threads and exit
handlers are done, and cannot tell a missing module from one that lacks another.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from tritune.errors import TrituneError

_OWN = str(Path(__file__).parents[1])


class NoProgramError(TrituneError):
    """There is no program of this name."""


@dataclass(frozen=True)
class Program:
    """A script or a module, and its arguments.

    It runs outside of the command line's error handling: errors of a program are shown as Python
    shows them, from the traceback to the exit status.
    """

    name: str
    arguments: tuple[str, ...]
    is_module: bool
    #: Called before its first line. It takes seconds, so mistakes are looked for first.
    prepare: Callable[[], None]

    def run(self) -> None:
        """Run the program in this process, as `__main__`; raises what it raises."""
        sys.excepthook = sys.__excepthook__  # the command line has its own
        try:
            if self.is_module:
                self.prepare()  # to find a module of a package runs the package
                code, main, argv0 = _module(self.name)
            else:
                code, main, argv0 = _script(self.name)
                self.prepare()
            sys.argv = [argv0, *self.arguments]
            sys.modules["__main__"] = main
            exec(code, vars(main))
        except (SystemExit, NoProgramError):
            raise
        except BaseException as error:
            _hide_own_frames(error)
            raise


def _hide_own_frames(error: BaseException) -> None:
    """Hide the frames around the program from whatever shows the error."""
    trace, show = error.__traceback__, getattr(sys, "excepthook", sys.__excepthook__)
    while trace is not None and _is_around(trace):
        trace = trace.tb_next

    def shown(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        # On its way here, the error has collected those frames again.
        show(kind, value.with_traceback(trace), trace)

    sys.excepthook = shown


def _is_around(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith((_OWN, "<frozen importlib"))


def _script(name: str) -> tuple[CodeType, ModuleType, str]:
    """Return what `python NAME` would run: a file, standard input, a folder or an archive."""
    if name == "-":
        _replace_first_path("")
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True)
        loader = importlib.machinery.BuiltinImporter
        return code, _main(__file__="<stdin>", __loader__=loader), name
    file = os.path.join(os.getcwd(), name)  # as Python does, which leaves what is in the name
    if pkgutil.get_importer(name) is not None:  # a folder or an archive
        sys.path.insert(0, file)
        code, main, _ = _module("__main__")
        return code, main, name
    try:
        source = Path(name).read_bytes()
    except OSError as error:
        raise NoProgramError(f"{name} cannot be run: {error.strerror or error}") from None
    compiled = pkgutil.read_code(io.BytesIO(source))
    code = compiled or compile(source, file, "exec", dont_inherit=True)
    main = _main(__file__=file, __loader__=importlib.machinery.SourceFileLoader("__main__", file))
    _replace_first_path(str(Path(name).resolve().parent))
    return code, main, name


def _module(name: str) -> tuple[CodeType, ModuleType, str]:
    """Return what `python -m NAME` would run; of a package, its `__main__`."""
    known: importlib.machinery.ModuleSpec | None = None
    if name == "__main__":
        spec = importlib.machinery.PathFinder.find_spec("__main__", sys.path[:1])
    else:
        _replace_first_path(os.getcwd())
        spec = known = _spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = known = _spec(f"{name}.__main__")
    loader: Any = spec and spec.loader
    code = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise NoProgramError(f"module {name} cannot be run: there is no such module")
    package = known.parent if known is not None else ""
    main = _main(__file__=spec.origin, __loader__=loader, __spec__=known, __package__=package)
    return code, main, str(spec.origin)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A package that is there may lack something itself: that error is the program's.
        if error.name is not None and (error.name == name or name.startswith(f"{error.name}.")):
            return None
        raise
    except ValueError as error:
        raise NoProgramError(f"module {name} cannot be run: {error}") from None


def _main(**variables: Any) -> ModuleType:
    main = ModuleType("__main__")
    builtins = {"__builtins__": sys.modules["builtins"], "__spec__": None, "__package__": None}
    vars(main).update({**builtins, "__cached__": None, **variables})
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    return main


def _replace_first_path(folder: str) -> None:
    """Replace the folder of the `tritune` command in sys.path by the program's."""
    safe = getattr(sys.flags, "safe_path", False)
    if not safe:
        sys.path[0] = folder
