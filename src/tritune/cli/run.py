"""`tritune run`: run a program unchanged, so that its Triton kernels are tuned and remembered."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tritune import env
from tritune.cli._options import StoreOption
from tritune.cli._program import Program
from tritune.cli._run_report import report_at_exit
from tritune.cli._terminal import warn

#: Everything behind the program's name is the program's.
CONTEXT = {"allow_interspersed_args": False}


def command(
    program: Annotated[
        str,
        typer.Argument(metavar="SCRIPT", help="A Python file, - for standard input; see also -m."),
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
    store: StoreOption = None,
) -> Program:
    """Run a Python program so that its Triton kernels are tuned once, and for all.

    Each triton.autotune kernel, in whatever library, is compiled in parallel and measured in
    processes of its own, on copies of its arguments. Its winner is kept: the next start tunes
    nothing. The Python processes that the program starts inherit all this, the routing of torch's
    attention too. A line at the end says what was tuned, what failed and what was left alone.
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

    def prepare() -> None:
        if autotune or integrations:
            report_at_exit(autotune, integrations)
        if autotune:
            from tritune.integrations import triton_autotune

            triton_autotune.enable()
        if integrations:
            _enable_integrations()

    return Program(program, tuple(arguments or ()), module, prepare)


def _enable_integrations() -> None:
    import tritune.integrations

    try:
        tritune.integrations.enable_all()
        tritune.integrations.enable_in_children()
    except Exception as error:
        # The program runs without, as it would have.
        warn(f"the integrations are left out: {type(error).__name__}: {error}")
