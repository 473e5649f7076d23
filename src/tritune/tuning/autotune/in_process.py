"""A race within the program's own process, for what no other process can run.

A config that fails costs only itself, as long as it fails with an exception: a crash takes the
program with it. Configs run on copies of the arguments' memory where there is room for them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tritune.policy.sources import warn_once
from tritune.tuning.autotune.call_case import tensors_in
from tritune.tuning.autotune.call_folder import free_bytes
from tritune.tuning.autotune.call_problem import device_of
from tritune.tuning.measure.disturbance import disturbed, run_delay, waited_ms
from tritune.tuning.measure.race import Race
from tritune.tuning.measure.statistics import Round, median
from tritune.tuning.workers.device_lock import device_lock

#: How often a measurement is made that other processes disturb.
_TRIES = 3
#: As in the tuner: the best few meet again, in as many rounds as it takes to tell them apart.
_FINALISTS, _FINAL_ROUNDS = 4, 6


@dataclass(frozen=True)
class Times:
    """The rounds of a first race of all configs, and of a final of the best and the default.

    Configs that fail are missing.
    """

    first: Mapping[Any, Sequence[Round]]
    final: Mapping[Any, Sequence[Round]]


class BusyError(Exception):
    """Other processes disturb what is measured, again and again."""


def race_in_process(
    owner: Any, configs: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Times:
    """Time the configs of one of Triton's autotuners. If all fail, the first error is raised.

    BusyError where the machine is too busy to tell.
    """
    names = [*owner.arg_names[: len(args)], *kwargs]
    named = dict(zip(names, _copied([*args, *kwargs.values()]), strict=True))
    device = device_of(named)
    args = tuple(named.pop(name) for name in names[: len(args)])
    owner.nargs = dict(zip(owner.arg_names, args, strict=False))
    errors: list[Exception] = []

    def bench(config: Any) -> Any:
        return owner._bench(*args, config=config, **named)

    def times_ms(config: Any) -> Round | None:
        try:
            found = _undisturbed(lambda: bench(config)) if device.type == "cpu" else bench(config)
        except BusyError:
            raise
        except Exception as error:
            errors.append(error)
            return None
        ms = float(found[0] if isinstance(found, (list, tuple)) else found)
        return (ms,) if ms < float("inf") else None  # infinite for some failures

    def waiting(holder: int | None) -> None:
        name = owner.base_fn.__qualname__
        warn_once(f"{name} waits for process {holder}, which measures on this device")

    with device_lock(device, waiting=waiting):
        first = Race(configs)
        first.hold(times_ms)
        ranked = sorted(first.rounds, key=lambda config: median(first.rounds[config]))
        if not ranked and errors:
            raise errors[0]
        default = [configs[0]] if configs[0] in first.rounds else []
        finalists = [*ranked[:_FINALISTS], *default]
        final = Race(finalists, keep=finalists)
        for _ in range(_FINAL_ROUNDS):
            final.hold(times_ms)
    return Times(first.rounds, final.rounds)


def _undisturbed(measure: Callable[[], Any]) -> Any:
    """Measure while this process has the CPUs that it needs."""
    for _ in range(_TRIES):
        before, begun = run_delay().read(), time.perf_counter()
        found = measure()
        took_ms = (time.perf_counter() - begun) * 1000
        if not disturbed(waited_ms(before, run_delay().read()), took_ms):
            return found
    raise BusyError


def _copied(values: list[Any]) -> list[Any]:
    """Return copies of the tensors and descriptors among the values, which share memory where the
    originals do; the originals, where there is no room.
    """
    tensors = tensors_in(values)
    storages = {each.untyped_storage().data_ptr(): each for each in tensors if _is_plain(each)}
    nbytes = sum(each.untyped_storage().nbytes() for each in storages.values())
    free = min((free_bytes(each.device) for each in storages.values()), default=0)
    if 2 * nbytes >= free:
        return values
    memo: dict[Any, Any] = {}
    for tensor in tensors:
        copied = copy.deepcopy(tensor.detach(), memo) if _is_plain(tensor) else tensor
        memo[id(tensor)] = copied
    return [copy.deepcopy(each, memo) if tensors_in(each) else each for each in values]


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.layout is torch.strided
