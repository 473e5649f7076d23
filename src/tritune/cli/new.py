"""`tritune new`: write a folder for a new kernel, with all that a kernel needs."""

from __future__ import annotations

import contextlib
import importlib.util
import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

#: The files that are copied: a package that works, tested as it is written.
_TEMPLATES = Path(__file__).with_name("new_kernel")
#: Stands for the kernel's name in the files that are copied.
_PLACEHOLDER = "KERNEL"


def command(
    name: Annotated[str, typer.Argument(help="The kernel's name: a Python name.")],
    into: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the kernel's folder is made.")
    ] = Path(),
) -> None:
    """Write a folder for a new kernel: device code, space, reference, test and benchmark.

    They work as they are, with a softmax in the place of the kernel that is to be written.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise typer.BadParameter(f"{name!r} is no Python name: letters, digits and _ are allowed")
    folder = into / name
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists: choose another name, or move it away")
    taken = _module_of(name)
    if taken is not None:
        raise typer.BadParameter(
            f"{name!r} is a module already, {taken}, which the kernel would hide: choose another"
        )
    try:
        written = _write(folder, name)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be written: {error.strerror}") from None
    for path in written:
        typer.echo(path)
    typer.echo(
        f"\nFrom {into.resolve()}:\n"
        f"  pytest {name}                  is it right?\n"
        f"  python -m {name}.benchmark     is it fast?\n"
        f"Then put your own formula into reference.py and kernel.py."
    )


def _module_of(name: str) -> str | None:
    """Return where the module is that Python would import by this name; None if there is none."""
    if name in sys.stdlib_module_names:
        return "of Python's own"
    if name in sys.modules:
        return str(getattr(sys.modules[name], "__file__", name))
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            return f"{spec.origin or spec.name}"
    return None


def _write(folder: Path, name: str) -> list[Path]:
    """Copy the files, with the kernel's name; return what was written."""
    folder.mkdir(parents=True)
    written = []
    for source in sorted(_TEMPLATES.glob("*.py")):
        path = folder / source.name.replace(_PLACEHOLDER, name)
        path.write_text(source.read_text().replace(_PLACEHOLDER, name))
        written.append(path)
    return written
