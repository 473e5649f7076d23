"""The folder in which a call travels: kernel, arguments, and what each config makes of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tritune.space import Config
from tritune.tuning.autotune.launches import Call, Stack, plan
from tritune.tuning.autotune.portable import Packer, PortableError, code_digest
from tritune.tuning.case import CaseSpec


@dataclass(frozen=True)
class Hooks:
    """Functions to run around a launch: the decorator's own hooks, and those of configs."""

    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    of_config: Mapping[Config, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class CallToTune:
    """Everything about a call that its workers have to know."""

    stack: Stack
    call: Call
    device: torch.device
    default: Config
    #: The keyword arguments that each config stands for; None where there are too many to list,
    #: and they stand for themselves.
    configs: Mapping[Config, Mapping[str, Any]] | None
    hooks: Hooks = field(default_factory=Hooks)
    #: Arguments that hold zeros before every run.
    reset_to_zero: Sequence[str] = ()
    #: What arguments should hold afterwards, by name, or in order for all that are written.
    expected: Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class WrittenCase:
    spec: CaseSpec
    #: What the arguments need of a worker's memory.
    nbytes: int


def write_case(folder: str, wanted: CallToTune) -> WrittenCase:
    """Write a call to a folder; PortableError where something of it cannot be sent."""
    packer = Packer()
    stack, call, hooks = wanted.stack, wanted.call, wanted.hooks
    names = stack.kernel.arg_names
    roots: dict[str, Any] = {
        "kernel": packer.value(stack.kernel, f"the kernel {stack.kernel.__name__}"),
        "digest": code_digest(stack.kernel),
        "args": [
            packer.value(value, f"argument {name}")
            for name, value in zip(names, call.args, strict=False)
        ],
        "kwargs": _named(packer, call.kwargs, "argument {}"),
        "device": str(wanted.device),
        "default": wanted.default.to_json(),
        "before": packer.value(hooks.before, "pre_hook"),
        "after": packer.value(hooks.after, "post_hook"),
        "reset_to_zero": list(wanted.reset_to_zero),
        "expected": _expected(packer, wanted),
    }
    if wanted.configs is not None:
        roots["configs"] = [
            _planned(packer, wanted, point, kwargs) for point, kwargs in wanted.configs.items()
        ]
    else:
        roots["configs"] = None
        roots["grid"] = packer.value(call.grid, "grid")
        roots["heuristics"] = packer.value(list(stack.heuristics), "a heuristic")
    nbytes = packer.tensors.nbytes
    _check_size(nbytes, wanted.device)
    packer.write(folder, roots)
    return case_in(folder, nbytes)


def case_in(folder: str, nbytes: int) -> WrittenCase:
    """Return the case in a folder, and how much memory its arguments need."""
    return WrittenCase(
        CaseSpec("tritune.tuning.autotune.call_case:open_case", {"folder": folder}), nbytes
    )


def _named(packer: Packer, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: packer.value(value, where.format(name)) for name, value in values.items()}


def _planned(
    packer: Packer, wanted: CallToTune, point: Config, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    planned = plan(wanted.stack, wanted.call, kwargs)
    return {
        "config": point.to_json(),
        "kwargs": _named(packer, planned.kwargs, "{} of a config"),
        "grid": planned.grid,
        "hook": packer.value(wanted.hooks.of_config.get(point), "the pre_hook of a config"),
    }


def _expected(packer: Packer, wanted: CallToTune) -> dict[str, Any] | None:
    expected = wanted.expected
    if expected is None:
        return None
    named = isinstance(expected, Mapping)
    values = list(expected.values()) if isinstance(expected, Mapping) else list(expected)
    return {
        "names": list(expected) if named else None,
        "values": [packer.value(value, "what the reference returns") for value in values],
    }


def _check_size(nbytes: int, device: torch.device) -> None:
    """Raise an error unless the arguments fit three times: in files, in a worker, and to restore.
    """
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 3 * nbytes > free:
        raise PortableError(
            f"its arguments are {nbytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        )
