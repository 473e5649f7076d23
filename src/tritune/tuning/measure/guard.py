"""Catching kernels that write where they should not, or read what nobody wrote.

Inside a `Guard`, every tensor that torch code allocates lies between canaries, and what is not
initialised holds garbage: NaN at first, whatever the bytes mean after that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tritune.dtypes import dtype_name

#: Before and behind each tensor. A tile that overruns its tensor begins right behind it; the size
#: keeps every alignment that a kernel could have been specialised for.
CANARY_BYTES = 1 << 16
#: NaN in every floating-point type, -1 in every signed integer.
NAN_BYTE = 0xFF
#: Bytes of small numbers: a result that is the same after NaN and after these did not read them.
OTHER_BYTE = 0x2A

_UNINITIALISED = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split()
)
_INITIALISED = frozenset(
    "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full".split()
)
_BUILT_IN = frozenset(("aten", "prim", "prims"))


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which allocations are guarded; `damage` tells afterwards whether that mattered.

    It stays in force inside operators that were registered with torch from Python.
    """

    def __init__(self, garbage_byte: int = NAN_BYTE) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._garbage_byte = garbage_byte
        self._guarded: list[tuple[torch.Tensor, torch.Tensor]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Or torch would load its compiler when the mode is first used, which takes seconds.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace not in _BUILT_IN:
            return self._inside(func, args, kwargs)
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _UNINITIALISED:
            return self._guard(result, initialised=False)
        if name in _INITIALISED:
            return self._guard(result, initialised=True)
        return result

    def damage(self) -> str | None:
        """Return what was written outside of the allocated tensors; None if nothing was."""
        for buffer, tensor in self._guarded:
            canary = _canary(buffer.device)
            sides = (buffer[:CANARY_BYTES], "before"), (buffer[-CANARY_BYTES:], "behind")
            for side, where in sides:
                changed = int((side != canary).sum())
                if changed:
                    kind = dtype_name(tensor.dtype)
                    return (
                        f"wrote outside its output: {changed} bytes {where} a {kind} tensor of "
                        f"shape {tuple(tensor.shape)}"
                    )
        return None

    def _inside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a registered operator's own function, with the mode on."""
        tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        key = getattr(torch._C.DispatchKey, device.type.upper())
        with self:
            return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)

    def _guard(self, tensor: torch.Tensor, initialised: bool) -> torch.Tensor:
        """Place a tensor between canaries, without its values if it had none."""
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            return tensor
        inner = tensor.untyped_storage().nbytes()
        size = 2 * CANARY_BYTES + inner
        buffer = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        buffer.fill_(self._garbage_byte)
        buffer[:CANARY_BYTES] = buffer[-CANARY_BYTES:] = _canary(tensor.device)
        elements = inner // tensor.element_size()
        flat = buffer[CANARY_BYTES : CANARY_BYTES + elements * tensor.element_size()]
        flat = flat.view(tensor.dtype)
        offset = flat.storage_offset() + tensor.storage_offset()
        placed = flat.as_strided(tensor.shape, tensor.stride(), offset)
        if initialised:
            placed.copy_(tensor)
        self._guarded.append((buffer, placed))
        return placed


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a number for each tensor's storage; equal numbers mean equal contents."""
    return [_checksum(tensor) for tensor in tensors]


def _checksum(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    whole = memory.numel() // 8 * 8
    total = memory[:whole].view(torch.int64).sum() + memory[whole:].sum()
    return int(total)


@functools.cache
def _canary(device: torch.device) -> torch.Tensor:
    """Return bytes that no kernel writes by chance: no value repeated, no pattern of any type."""
    generator = torch.Generator().manual_seed(CANARY_BYTES)
    canary = torch.randint(0, 256, (CANARY_BYTES,), dtype=torch.uint8, generator=generator)
    return canary.to(device)
