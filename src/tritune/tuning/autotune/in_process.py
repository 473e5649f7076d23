"""A race within the program's own process, for what no other process can run.

A config that fails costs only itself, as long as it fails with an exception: a crash takes the
program with it. Configs run on copies of the arguments' memory where there is room for them.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tritune.policy.sources import warn_once
from tritune.tuning.measure.disturbance import disturbed, run_delay, waited_ms
from tritune.tuning.workers.device_lock import device_lock

#: How often a measurement is made that other processes disturb.
_TRIES = 3
#: As in the tuner: the best few meet again, in as many rounds as it takes to tell them apart.
_FINALISTS, _FINAL_ROUNDS = 4, 6


@dataclass(frozen=True)
class Times:
    """The milliseconds of each config: once, and in the rounds of a final if it got there.

    Those that fail have neither.
    """

    once: Mapping[Any, float]
    final: Mapping[Any, Sequence[float]]


class BusyError(Exception):
    """Other processes disturb what is measured, again and again."""


def race_in_process(
    owner: Any, configs: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Times:
    """Time the configs of one of Triton's autotuners. If all fail, the first error is raised.

    BusyError where the machine is too busy to tell.
    """
    tensors = [_tensor_of(value) for value in (*args, *kwargs.values())]
    device = next((each.device for each in tensors if each is not None), torch.device("cpu"))

    def say(holder: int | None) -> None:
        name = owner.base_fn.__qualname__
        warn_once(f"{name} waits for process {holder}, which measures on this device")

    with device_lock(device, waiting=say):
        return _race(owner, configs, args, kwargs, _undisturbed if device.type == "cpu" else _once)


def _race(
    owner: Any,
    configs: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    measured: Callable[[Callable[[], Any]], Any],
) -> Times:
    copies = Copies([*args, *kwargs.values()])
    args = tuple(copies.of(each) for each in args)
    kwargs = {name: copies.of(each) for name, each in kwargs.items()}
    owner.nargs = dict(zip(owner.arg_names, args, strict=False))
    errors: list[Exception] = []

    def time_ms(config: Any) -> float:
        try:
            found = measured(lambda: owner._bench(*args, config=config, **kwargs))
        except BusyError:
            raise
        except Exception as error:
            errors.append(error)
            return math.inf
        return float(found[0] if isinstance(found, (list, tuple)) else found)

    once = {config: time_ms(config) for config in configs}
    ranked = sorted((each for each in once if once[each] < math.inf), key=once.__getitem__)
    if not ranked and errors:
        raise errors[0]
    finalists = ranked[:_FINALISTS]
    if configs[0] in ranked[_FINALISTS:]:
        finalists.append(configs[0])
    final: dict[Any, list[float]] = {config: [] for config in finalists}
    for _ in range(_FINAL_ROUNDS):
        for config in list(final):
            ms = time_ms(config)
            if ms < math.inf:
                final[config].append(ms)
            else:
                del final[config]
    return Times({each: ms for each, ms in once.items() if ms < math.inf}, final)


def _once(measure: Callable[[], Any]) -> Any:
    return measure()


def _undisturbed(measure: Callable[[], Any]) -> Any:
    """Measure while this process has the CPUs that it needs."""
    for _ in range(_TRIES):
        before, begun = run_delay().read(), time.perf_counter()
        found = measure()
        took_ms = (time.perf_counter() - begun) * 1000
        if not disturbed(waited_ms(before, run_delay().read()), took_ms):
            return found
    raise BusyError


class Copies:
    """Copies of tensors that share memory where the originals do; the originals themselves, where
    there is no room.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
            for tensor in map(_tensor_of, values)
            if tensor is not None
        }
        self._copies: dict[int, torch.UntypedStorage] = {}
        if 2 * sum(each.nbytes() for each in storages.values()) < _free_bytes(storages.values()):
            self._copies = {at: _copied(each) for at, each in storages.items()}

    def of(self, value: Any) -> Any:
        """Return the value with its memory replaced."""
        tensor = _tensor_of(value)
        if tensor is None:
            return value
        storage = self._copies.get(tensor.untyped_storage().data_ptr())
        if storage is None:
            return value
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        if isinstance(value, torch.Tensor):
            return copy
        return dataclasses.replace(value, base=copy)


def _tensor_of(value: Any) -> torch.Tensor | None:
    """Return the tensor itself, or that of a tensor descriptor."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = getattr(value, "base", None)
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value if plain and type(value) in (torch.Tensor, torch.nn.Parameter) else None


def _copied(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    copy: torch.UntypedStorage = storage.clone()  # type: ignore[no-untyped-call]
    return copy


def _free_bytes(storages: Any) -> int:
    devices = {each.device for each in storages}
    free = [
        torch.cuda.mem_get_info(device)[0]
        if device.type == "cuda"
        else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for device in devices
    ]
    return min(free, default=0)
