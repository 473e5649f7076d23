"""Calls like earlier ones, made without looking at them again.

A small op costs what comes before its kernel: checks, strides, the look-up of a config, Triton
looking at each argument, and torch's dispatcher. All of it follows from what kind of tensors are
given, and from nothing in them. So an op remembers its calls: what the tensors were like (torch's
own guards tell in one step, and with them who traces or transforms) and the steps that were taken,
which lack addresses only. The next call like it takes the same steps, and is done.

Everything unusual goes the long way, which always works: tensors that are not aligned, somebody who
compiles, traces, profiles, listens to launches or stands in for Triton, and a config about which
the policy has changed its mind. Ops look twice: where they are called, and where torch's dispatcher
calls them (from compiled code, or for who traces), since its state is another there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from triton import knobs
from triton.runtime.jit import JITFunction

from tritune.ops.call.fast_path import ALIGNED, Tensors, replay
from tritune.ops.call.launch import RUN, Steps
from tritune.policy.process import POLICY
from tritune.policy.recorder import Key

_torch_c: Any = torch._C
_dispatch_modes: Callable[[], int] = _torch_c._len_torch_dispatch_stack
_profiled: Callable[[], bool] = _torch_c._autograd._profiler_enabled
# Where another torch does not have these, nothing is remembered.
_guards: Any = getattr(getattr(_torch_c, "_dynamo", None), "guards", None)
#: A test of whether tensors are like those that it was made with: type, dtype, device, sizes,
#: strides, `requires_grad`, and the state of torch's dispatcher.
_Guards: Any = getattr(_guards, "TensorGuards", None)
_runtime: Any = knobs.runtime

#: So many calls of an op are remembered, the latest first; and of so many it is known that they
#: were made once, which is not worth more.
_MOST, _MOST_ONCE = 32, 256

Options = tuple[Any, ...]


class _Call(NamedTuple):
    """A call that was made, for tensors that the test accepts."""

    options: Options
    accepts: Callable[..., bool]
    #: Whether the tensors would take part in a gradient, if one was wanted.
    differentiable: bool
    #: From the inputs to the outputs.
    again: Callable[..., Tensors]
    question: Key
    config: Mapping[str, Any]
    #: The policy's answers when the call was made; None if the config is not one of them.
    answers: object


class Repeats:
    """The calls of one op, to be made again."""

    every: ClassVar[list[Repeats]] = []

    def __init__(self) -> None:
        self.forget()
        self.every.append(self)

    def forget(self) -> None:
        """Begin afresh."""
        self._calls: tuple[_Call, ...] = ()
        self._once: dict[tuple[Any, ...], None] = {}

    def __call__(
        self,
        options: Options,
        *inputs: torch.Tensor,
        before: Callable[[], None] | None = None,
    ) -> Tensors | None:
        """The outputs, if there was a call with these options and tensors like these.

        `before` looks at what is in the tensors, where that matters.
        """
        if is_dynamo_compiling() or _dispatch_modes() or _profiled() or JITFunction.run is not RUN:
            return None
        # The test does not see tangents.
        if forward_ad._current_level >= 0:
            return None
        if _runtime.launch_enter_hook.calls or _runtime.launch_exit_hook.calls:
            return None
        for call in self._calls:
            try:
                # A nested tensor would make the test abort the process.
                if call.options != options or inputs[0].is_nested or not call.accepts(*inputs):
                    continue
            except (TypeError, AttributeError):  # of another number, or no tensors
                continue
            addresses = 0
            for tensor in inputs:
                addresses |= tensor.data_ptr()
            if addresses % ALIGNED or (call.differentiable and torch.is_grad_enabled()):
                return None
            if POLICY.stand(call.answers) or POLICY.config_for(*call.question) is call.config:
                if before is not None:
                    before()
                return call.again(*inputs)
        return None

    def keep(
        self, options: Options, inputs: Tensors, outputs: Tensors, steps: Steps | None
    ) -> None:
        """Remember a call, unless it is the first of its kind. Outputs are new tensors, or none if
        the op wrote into its inputs.
        """
        if steps is None or not steps.complete or _Guards is None:
            return
        kind = (*options, *[tensor.shape for tensor in inputs])
        if kind not in self._once:
            if len(self._once) >= _MOST_ONCE:
                self._once.clear()
            self._once[kind] = None
            return
        again = replay(steps, inputs, outputs)
        if again is None:
            return
        call = _Call(
            options,
            _Guards(*inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None).check,
            any(tensor.requires_grad for tensor in inputs),
            again,
            steps.question,
            steps.config,
            POLICY.answers_with(steps.question, steps.config),
        )
        self._calls = (call, *self._calls)[:_MOST]
