"""Options that several commands have, and what their texts stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritune.errors import not_allowed

if TYPE_CHECKING:
    import torch

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="A file, or a database's URL; TRITUNE_STORE by default."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:1; what is here by default.")
]
JobsOption = Annotated[
    int | None, typer.Option("-j", "--jobs", help="Processes that compile; one per core.")
]


def torch_device(name: str | None) -> torch.device:
    """Return the torch device of this name; without one, a GPU, or the CPU if there is none."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise typer.BadParameter(not_allowed("device", name, ("cpu", "cuda", "cuda:N"))) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no GPU here: run this on the machine that has it")
    return device


def count_of_jobs(given: int | None) -> int | None:
    """Return how many processes compile, None for one per core."""
    if given is not None and given < 1:
        raise typer.BadParameter(f"jobs {given}, allowed: 1 and more")
    return given
