"""The call cache: replays launches of earlier calls, without checking the arguments again.

A small op costs what comes before its kernel: checks, strides, the look-up of a config, Triton's
inspection of each argument, and torch's dispatcher. All of it depends on the metadata of the
tensors, not on their values. So the cache keeps, for each kind of call, torch's guards of the
tensors and a function that repeats the launches with new addresses (`fast_path.py`).

The slow path always works, and takes whatever is unusual: unaligned tensors; compiling, tracing and
profiling; launch hooks; code that replaces Triton's launches; a config that the policy has changed.
Ops look into the cache twice: in the public function, and where torch's dispatcher calls them (from
compiled code, or while tracing), since the dispatcher's state is another there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from triton import knobs
from triton.runtime.jit import JITFunction

from tritune.ops.call.fast_path import ALIGNED, Tensors, compile_replay
from tritune.ops.call.trace import RUN, Trace
from tritune.policy.process import POLICY
from tritune.policy.recorder import DispatchKey

_torch_c: Any = torch._C
_dispatch_modes: Callable[[], int] = _torch_c._len_torch_dispatch_stack
_profiled: Callable[[], bool] = _torch_c._autograd._profiler_enabled
# Where another torch does not have these, nothing is cached.
_guards: Any = getattr(getattr(_torch_c, "_dynamo", None), "guards", None)
#: Guards on the tensors' type, dtype, device, sizes, strides and `requires_grad`, and on the state
#: of torch's dispatcher.
_Guards: Any = getattr(_guards, "TensorGuards", None)
_runtime: Any = knobs.runtime

#: The most calls of an op in the cache, the latest first.
_MOST = 32
#: The most kinds of calls that were made once. Only the second call of a kind is cached.
_MOST_ONCE = 256

Options = tuple[Any, ...]


class _Entry(NamedTuple):
    """A call that was made, for tensors that the guards accept."""

    options: Options
    accepts: Callable[..., bool]
    #: Whether the tensors would take part in a gradient, if one was wanted.
    differentiable: bool
    #: Launches for new inputs and returns the outputs.
    replay: Callable[..., Tensors]
    key: DispatchKey
    config: Mapping[str, Any]
    #: The policy's answers when the call was made; None if the config is not one of them.
    answers: object


class CallCache:
    """The cached calls of one op."""

    instances: ClassVar[list[CallCache]] = []

    def __init__(self) -> None:
        self.clear()
        self.instances.append(self)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries: tuple[_Entry, ...] = ()
        self._once: dict[tuple[Any, ...], None] = {}

    def __call__(
        self,
        options: Options,
        *inputs: torch.Tensor,
        before: Callable[[], None] | None = None,
    ) -> Tensors | None:
        """Return the outputs on a cache hit, else None.

        `before` checks the values of the tensors, where these matter.
        """
        if is_dynamo_compiling() or _dispatch_modes() or _profiled() or JITFunction.run is not RUN:
            return None
        # The guards do not see tangents.
        if forward_ad._current_level >= 0:
            return None
        if _runtime.launch_enter_hook.calls or _runtime.launch_exit_hook.calls:
            return None
        for entry in self._entries:
            try:
                # A nested tensor would make the guards abort the process.
                if entry.options != options or inputs[0].is_nested or not entry.accepts(*inputs):
                    continue
            except (TypeError, AttributeError):  # another number of inputs, or no tensors
                continue
            addresses = 0
            for tensor in inputs:
                addresses |= tensor.data_ptr()
            if addresses % ALIGNED or (entry.differentiable and torch.is_grad_enabled()):
                return None
            if POLICY.stand(entry.answers) or POLICY.config_for(*entry.key) is entry.config:
                if before is not None:
                    before()
                return entry.replay(*inputs)
        return None

    def store(
        self, options: Options, inputs: Tensors, outputs: Tensors, trace: Trace | None
    ) -> None:
        """Cache a call, unless it is the first of its kind.

        Outputs are new tensors; there are none if the op wrote into its inputs.
        """
        if trace is None or not trace.complete or _Guards is None:
            return
        kind = (*options, *[tensor.shape for tensor in inputs])
        if kind not in self._once:
            if len(self._once) >= _MOST_ONCE:
                self._once.clear()
            self._once[kind] = None
            return
        replay = compile_replay(trace, inputs, outputs)
        if replay is None:
            return
        entry = _Entry(
            options,
            _guards_of(inputs),
            any(tensor.requires_grad for tensor in inputs),
            replay,
            trace.key,
            trace.config,
            POLICY.answers_with(trace.key, trace.config),
        )
        self._entries = (entry, *self._entries)[:_MOST]


def _guards_of(inputs: Tensors) -> Callable[..., bool]:
    """Return a function that accepts tensors like these, with the same ones in the same memory."""
    # torch's guards accept no tensor twice.
    objects, addresses = [id(tensor) for tensor in inputs], [t.data_ptr() for t in inputs]
    places = [objects.index(each) for each in objects]
    distinct = sorted(set(places))
    check: Callable[..., bool] = _Guards(
        *(inputs[place] for place in distinct), dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    twice = [(place, number) for number, place in enumerate(places) if place != number]
    shared = [(addresses.index(addresses[place]), place) for place in distinct]
    shared = [(first, place) for first, place in shared if first != place]
    if not twice and not shared:
        return check

    def accepts(*tensors: torch.Tensor) -> bool:
        return (
            len(tensors) == len(places)
            and all(tensors[first] is tensors[number] for first, number in twice)
            and check(*[tensors[place] for place in distinct])
            and all(tensors[a].data_ptr() == tensors[b].data_ptr() for a, b in shared)
        )

    return accepts
