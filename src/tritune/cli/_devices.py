"""The device that an option names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tritune.errors import not_allowed

if TYPE_CHECKING:
    import torch


def torch_device(name: str | None) -> torch.device:
    """The torch device of this name, a GPU or else the CPU if there is none; refused in a line."""
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
