"""`tritune run`: any program, unchanged, with kernels that remember what was tuned."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Annotated, Any

import typer

from tritune import env

#: Everything behind the program's name is the program's.
CONTEXT = {"allow_interspersed_args": False}


def command(
    program: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module's name.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="What the program gets.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="Run a module, as python -m does: tritune run -m pkg.mod.")
    ] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Tune nothing; write down what tune --recorded can tune."),
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Tune nothing: use what is known, or the first config.")
    ] = False,
    background: Annotated[
        bool, typer.Option("--background", help="Do not wait for winners: tune in idle time.")
    ] = False,
    autotune: Annotated[
        bool, typer.Option(help="Take care of triton.autotune, in every library.")
    ] = True,
    integrations: Annotated[
        bool, typer.Option(help="Route torch's attention and known libraries through tritune.")
    ] = True,
    store: Annotated[
        str | None, typer.Option(help="A file, or a database's URL; TRITUNE_STORE by default.")
    ] = None,
) -> None:
    """Run a Python program so that its Triton kernels are tuned once, and for all.

    Each triton.autotune kernel, in whatever library, is compiled in parallel and measured in
    processes of its own, on copies of its arguments. Its winner is kept: the next start tunes
    nothing. The program's children inherit this.
    """
    if sum((record, serve, background)) > 1:
        raise typer.BadParameter("--record, --serve and --background exclude each other")
    if record:
        os.environ[env.MODE.name] = "record"
    elif background:
        os.environ[env.MODE.name] = "background"
    if store is not None:
        os.environ[env.STORE.name] = store
    # For the processes that the program starts, too.
    os.environ[env.AUTOTUNE.name] = ("serve" if serve else "1") if autotune else "0"
    code, main, argv0 = _module(program) if module else _script(program)
    if autotune:
        from tritune.integrations import triton_autotune

        triton_autotune.enable()
    if integrations:
        _enable_integrations()
    sys.argv = [argv0, *(arguments or ())]
    sys.modules["__main__"] = main
    sys.excepthook = sys.__excepthook__  # the command line has its own
    _run(code, main)


def _enable_integrations() -> None:
    import tritune.integrations

    try:
        tritune.integrations.enable_all()
    except Exception as error:
        # The program runs without, as it would have.
        message = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"tritune: the integrations are left out: {message}", file=sys.stderr)


def _script(name: str) -> tuple[CodeType, ModuleType, str]:
    """What `python NAME` would run: a file, or a folder or archive with a `__main__` in it."""
    path = Path(name)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        sys.path.insert(0, str(path))
        code, main, _ = _module("__main__")
        return code, main, name
    try:
        source = path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be run: {error.strerror or error}") from None
    file = os.path.abspath(name)
    try:
        code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise typer.BadParameter(f"{name} is no Python program: {error}") from None
    main = _main(__file__=file, __loader__=importlib.machinery.SourceFileLoader("__main__", file))
    _replace_first_path(str(path.resolve().parent))
    return code, main, name


def _module(name: str) -> tuple[CodeType, ModuleType, str]:
    """What `python -m NAME` would run; of a package, its `__main__`."""
    if name != "__main__":
        _replace_first_path(os.getcwd())
    try:
        spec = importlib.util.find_spec(name) if name != "__main__" else _main_spec()
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise typer.BadParameter(f"module {name} cannot be run: {error}") from None
    loader: Any = spec and spec.loader
    code = loader.get_code(spec.name) if spec and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise typer.BadParameter(f"module {name} cannot be run: there is no such module")
    package = spec.parent if name != "__main__" else ""
    known = None if name == "__main__" else spec
    main = _main(__file__=spec.origin, __loader__=loader, __spec__=known, __package__=package)
    return code, main, str(spec.origin)


def _main_spec() -> importlib.machinery.ModuleSpec | None:
    """The `__main__` that is first on the path."""
    return importlib.machinery.PathFinder.find_spec("__main__", sys.path[:1])


def _main(**variables: Any) -> ModuleType:
    main = ModuleType("__main__")
    builtins = {"__builtins__": sys.modules["builtins"], "__spec__": None, "__package__": None}
    vars(main).update({**builtins, "__cached__": None, **variables})
    return main


def _replace_first_path(folder: str) -> None:
    """Python puts the program's folder first, here that of the `tritune` command."""
    safe = getattr(sys.flags, "safe_path", False)
    if not safe:
        sys.path[0] = folder


def _run(code: CodeType, main: ModuleType) -> None:
    """Run the program; its errors are shown as Python shows them, without what is around it."""
    try:
        exec(code, vars(main))
    except Exception as error:
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise typer.Exit(1) from None
