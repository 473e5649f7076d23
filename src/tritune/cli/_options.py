"""Options that several commands have, and the functions that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritune.errors import not_allowed

if TYPE_CHECKING:
    import torch

    from tritune.kernels.kernel import Problem

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


def parse_problems(ops: Sequence[str], texts: Sequence[str]) -> list[tuple[str, Problem]]:
    """Return the op and the problem of every --problem."""
    from tritune.workloads.catalog import workload_named

    if len(ops) != 1:
        raise typer.BadParameter("--problem needs exactly one op")
    return [(ops[0], workload_named(ops[0]).parse(text)) for text in texts]


def device_document(device: torch.device) -> dict[str, Any]:
    """Return the JSON form of a device."""
    from tritune.targets.device import detect

    found = detect(device)
    return {"name": found.name, "target": str(found.target), "fingerprint": found.fingerprint}
