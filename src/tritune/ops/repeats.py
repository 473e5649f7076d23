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
from torch.compiler import is_dynamo_compiling
from triton import knobs

from tritune.cpu import launcher
from tritune.ops import fresh
from tritune.ops.launch import Converted, Emptied, Launched, Steps, launches_as_usual
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
#: `torch.empty_strided`, by a shorter way.
_empty_on_cpu: Any = getattr(_guards, "_empty_strided_cpu", None)
_runtime: Any = knobs.runtime

#: What Triton takes for aligned, in bytes.
_ALIGNED = 16
#: So many calls of an op are remembered, the latest first; and of so many it is known that they
#: were made once, which is not worth more.
_MOST, _MOST_ONCE = 32, 256

Tensors = tuple[torch.Tensor, ...]
Options = tuple[Any, ...]
#: Does something with the tensors there are, the inputs first and the outputs after them; may add
#: another.
_Step = Callable[[list[torch.Tensor]], object]


class _Call(NamedTuple):
    """A call that was made, for tensors that the test accepts."""

    options: Options
    accepts: Callable[..., bool]
    #: Whether the tensors would take part in a gradient, if one was wanted.
    differentiable: bool
    #: From the inputs to the outputs.
    again: Callable[[Tensors], Tensors]
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
        if is_dynamo_compiling() or _dispatch_modes() or _profiled() or not launches_as_usual():
            return None
        if _runtime.launch_enter_hook.calls or _runtime.launch_exit_hook.calls:
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
        again = _again(steps, inputs, outputs)
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


def _again(steps: Steps, inputs: Tensors, outputs: Tensors) -> Callable[[Tensors], Tensors] | None:
    """The same steps with other tensors; None if they cannot be taken again."""
    replay = _Replay(inputs, outputs)
    if not all(replay.add(step) for step in steps.taken):
        return None
    making = [_emptying(tensor) for tensor in outputs]
    taken, first, last = replay.steps, len(inputs), len(inputs) + len(outputs)

    def again(inputs: Tensors) -> Tensors:
        tensors = list(inputs)
        for make in making:
            make(tensors)
        for step in taken:
            step(tensors)
        return tuple(tensors[first:last])

    device = steps.question[2]
    return again if device.type == "cpu" else _on(device, again)


class _Replay:
    """Steps that are told which tensors to use by their places: inputs, outputs, what is made."""

    def __init__(self, inputs: Tensors, outputs: Tensors) -> None:
        self.steps: list[_Step] = []
        self._places = [tensor.data_ptr() for tensor in (*inputs, *outputs)]

    def add(self, step: Emptied | Converted | Launched) -> bool:
        """Take a step in; False if it cannot be."""
        if isinstance(step, Launched):
            return self._launch(step)
        if isinstance(step, Converted):
            if step.source.data_ptr() not in self._places:
                return False
            self.steps.append(_converting(self._place(step.source), step.tensor.dtype))
        else:
            self.steps.append(_emptying(step.tensor))
        self._places.append(step.tensor.data_ptr())
        return True

    def _place(self, tensor: torch.Tensor) -> int:
        return self._places.index(tensor.data_ptr())

    def _launch(self, step: Launched) -> bool:
        # Which tensor is which must be plain from their addresses. Empty ones have none, and what
        # is no tensor (a descriptor) has more than that.
        places = self._places
        if len(set(places)) < len(places) or 0 in places:
            return False
        used = [tensor for tensor in step.tensors if tensor is not None]
        if not all(isinstance(tensor, torch.Tensor) for tensor in used):
            return False
        if any(t.data_ptr() not in places or t.data_ptr() % _ALIGNED for t in used):
            return False
        given = [self._place(tensor) for tensor in used]
        launch_at = None
        if used[0].is_cpu:
            arguments = (*step.tensors, *step.rest)
            launch_at = launcher.prepared(step.compiled, step.grid, arguments, len(given))
        if launch_at is not None:
            self.steps.append(_launching_at(launch_at, given))
        else:
            self.steps.append(_launching(step, given))
        return True


def _form(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _emptying(like: torch.Tensor) -> _Step:
    size, stride, dtype = _form(like)
    device = like.device
    if fresh.is_large(like):
        return lambda tensors: tensors.append(
            fresh.in_large_pages(torch.empty_strided(size, stride, dtype=dtype))
        )
    if device.type == "cpu" and _empty_on_cpu is not None:
        return lambda tensors: tensors.append(_empty_on_cpu(size, stride, dtype))
    return lambda tensors: tensors.append(
        torch.empty_strided(size, stride, dtype=dtype, device=device)
    )


def _converting(place: int, dtype: torch.dtype) -> _Step:
    return lambda tensors: tensors.append(tensors[place].to(dtype))


def _launching_at(launch_at: Callable[..., None], given: list[int]) -> _Step:
    return lambda tensors: launch_at(*[tensors[place].data_ptr() for place in given])


def _launching(step: Launched, given: list[int]) -> _Step:
    run, rest = step.compiled[step.grid], step.rest
    present = [tensor is not None for tensor in step.tensors]

    def launch(tensors: list[torch.Tensor]) -> None:
        in_turn = iter(given)
        run(*(tensors[next(in_turn)] if there else None for there in present), *rest)

    return launch


def _on(device: torch.device, run: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    """Triton launches on the current GPU, which need not be the one that the tensors are on."""

    def there(inputs: Tensors) -> Tensors:
        if torch.cuda.current_device() == device.index:
            return run(inputs)
        with torch.cuda.device(device):
            return run(inputs)

    return there
