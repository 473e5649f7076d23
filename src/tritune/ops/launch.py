"""Launching a kernel, and making a call again that was made before.

A small op costs what comes before its kernel: checks, strides, the look-up of a config, Triton
looking at each argument, and torch's dispatcher. All of it follows from what kind of tensors are
given, and from nothing in them. So an op remembers its calls: what the tensors were like (torch's
own guards tell in one step, and with them who traces or transforms) and a launch that lacks the
addresses only. The next call like it makes outputs, launches, and is done.

Everything unusual goes the long way, which always works: tensors that are not aligned, somebody who
compiles, traces, profiles or stands in for Triton, and a config that the policy has changed its
mind about. Ops look twice: where they are called, and where torch's dispatcher calls them (from
compiled code, or for who traces), since its state is another there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from tritune.cpu import launcher
from tritune.policy.process import POLICY
from tritune.policy.recorder import Key

_torch_c: Any = torch._C
_dispatch_modes: Callable[[], int] = _torch_c._len_torch_dispatch_stack
_profiled: Callable[[], bool] = _torch_c._autograd._profiler_enabled
#: A test of whether tensors are like those that it was made with: type, dtype, device, sizes,
#: strides, `requires_grad`, and the state of torch's dispatcher.
_Guards: Any = _torch_c._dynamo.guards.TensorGuards
#: `torch.empty_strided`, by a shorter way.
_empty_on_cpu: Any = _torch_c._dynamo.guards._empty_strided_cpu

#: What Triton takes for aligned, in bytes.
_ALIGNED = 16
#: What launches a kernel, unless somebody stands in for it (a recorder, one who only compiles).
_RUN = JITFunction.run
#: So many calls of an op are remembered, the latest first.
_MOST = 32

Tensors = tuple[torch.Tensor, ...]


def cdiv(size: int, block: int) -> int:
    """How many blocks cover a size; Triton's own is made for kernels, and slow outside of them."""
    return -(-size // block)


class Launched(NamedTuple):
    """A launch that was made, and why with this config."""

    compiled: CompiledKernel
    grid: tuple[int, int, int]
    tensors: Sequence[torch.Tensor | None]
    #: Everything after the tensors, in the order of the kernel's parameters.
    rest: tuple[Any, ...]
    question: Key
    config: Mapping[str, Any]


def launch(
    function: Any,
    question: Key,
    config: Mapping[str, Any],
    grid: tuple[int, ...],
    tensors: Sequence[torch.Tensor | None],
    numbers: tuple[Any, ...],
    **constants: Any,
) -> Launched | None:
    """Launch: tensors first, numbers after them, the rest by name. None if it was no usual one.

    `question` is what the policy has answered with the config.
    """
    compiled = function[grid](*tensors, *numbers, **constants, **config)
    # Triton's interpreter returns something else.
    if JITFunction.run is not _RUN or not isinstance(compiled, CompiledKernel):
        return None
    values = {**constants, **config}
    named = list(function.signature.parameters.values())[len(tensors) + len(numbers) :]
    rest = (*numbers, *(values.get(each.name, each.default) for each in named))
    x, y, z = (*grid, 1, 1)[:3]
    return Launched(compiled, (x, y, z), tensors, rest, question, config)


class _Call(NamedTuple):
    """A call that was made, for tensors that the test accepts."""

    options: tuple[Any, ...]
    accepts: Callable[..., bool]
    #: Whether the tensors would take part in a gradient, if one was wanted.
    differentiable: bool
    #: From the inputs to the outputs.
    again: Callable[[Tensors], Tensors]
    question: Key
    config: Mapping[str, Any]
    #: The policy's answers when the call was made; None if they were not all there was to it.
    answers: object


class Repeats:
    """The calls of one op, to be made again."""

    def __init__(self) -> None:
        self._calls: tuple[_Call, ...] = ()

    def __call__(
        self,
        options: tuple[Any, ...],
        *inputs: torch.Tensor,
        before: Callable[[], None] | None = None,
    ) -> Tensors | None:
        """The outputs, if there was a call with these options and tensors like these.

        `before` looks at what is in the tensors, where that matters.
        """
        if is_dynamo_compiling() or _dispatch_modes() or _profiled() or JITFunction.run is not _RUN:
            return None
        for call in self._calls:
            try:
                if call.options != options or not call.accepts(*inputs):
                    continue
            except TypeError:  # of another number, or no tensors
                continue
            addresses = 0
            for tensor in inputs:
                addresses |= tensor.data_ptr()
            if addresses % _ALIGNED or (call.differentiable and torch.is_grad_enabled()):
                return None
            if POLICY.stand(call.answers) or POLICY.config_for(*call.question) is call.config:
                if before is not None:
                    before()
                return call.again(inputs)
        return None

    def keep(
        self,
        options: tuple[Any, ...],
        inputs: Tensors,
        outputs: Tensors,
        launched: Launched | None,
    ) -> None:
        """Remember a call that made this launch and no other. Outputs are new tensors, or none if
        the op wrote into its inputs.
        """
        if launched is None or is_dynamo_compiling() or _dispatch_modes() or _profiled():
            return
        places = [tensor.data_ptr() for tensor in (*inputs, *outputs)]
        # Which of the kernel's tensors is which must be plain from their addresses.
        if any(place % _ALIGNED for place in places) or len(set(places)) < len(places):
            return
        call = _Call(
            options,
            _Guards(*inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None).check,
            any(tensor.requires_grad for tensor in inputs),
            _again(launched, places, outputs),
            launched.question,
            launched.config,
            POLICY.answers_that_stand(),
        )
        self._calls = (call, *self._calls)[:_MOST]


def _again(
    launched: Launched, places: Sequence[int], outputs: Tensors
) -> Callable[[Tensors], Tensors]:
    """The same launch with other tensors. `places`: the addresses of inputs and outputs."""
    device = launched.question[2]
    forms = [(tuple(out.shape), out.stride(), out.dtype) for out in outputs]
    order = [
        None if tensor is None else places.index(tensor.data_ptr()) for tensor in launched.tensors
    ]
    by_triton, rest = launched.compiled[launched.grid], launched.rest

    def the_long_way(inputs: Tensors) -> Tensors:
        outs = tuple(
            torch.empty_strided(size, stride, dtype=dtype, device=device)
            for size, stride, dtype in forms
        )
        tensors = (*inputs, *outs)
        by_triton(*(None if place is None else tensors[place] for place in order), *rest)
        return outs

    if device.type != "cpu":
        return _on(device, the_long_way)
    given = [place for place in order if place is not None]
    launch_at = launcher.prepared(
        launched.compiled, launched.grid, (*launched.tensors, *rest), len(given)
    )
    if launch_at is None:
        return the_long_way
    runtime: Any = knobs.runtime

    def the_short_way(inputs: Tensors) -> Tensors:
        # Somebody may want to hear of launches.
        if runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls:
            return the_long_way(inputs)
        outs = tuple([_empty_on_cpu(*form) for form in forms])
        tensors = inputs + outs
        launch_at(*[tensors[place].data_ptr() for place in given])
        return outs

    return the_short_way


def _on(device: torch.device, run: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    """Triton launches on the current GPU, which need not be the one that the tensors are on."""

    def there(inputs: Tensors) -> Tensors:
        if torch.cuda.current_device() == device.index:
            return run(inputs)
        with torch.cuda.device(device):
            return run(inputs)

    return there
