"""The case of a call that a program makes: its kernel and its arguments, read from a folder.

Each worker process has memory of its own. Which arguments the kernel writes is found out by running
it: memory that one config changes is what the others are compared in, and all other memory must
stay as it is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.tuning.autotune.call_folder import Hooks
from tritune.tuning.autotune.launches import Call, Planned, Stack, plan
from tritune.tuning.autotune.portable import PortableError, Unpacker, code_digest
from tritune.tuning.autotune.portable.tensors import GUARD_VALUE
from tritune.tuning.case import Expected, Launch

#: How far a result may be from the reference, relative to the largest element: some roundings of
#: the dtype; of fp32 many more, for its sums are long.
_ROUNDINGS, _LEAST_TOLERANCE = 4, 2.0**-16
_WRITES_FILE = "writes.json"


def open_case(folder: str) -> CallCase:
    """Open the case that `call_folder.write_case` wrote."""
    return CallCase(folder)


class CallCase:
    """One call with private memory. Memory is not read before it is needed."""

    # Nobody has promised that: a kernel may add up by atomics.
    repeatable = False

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._reader = Unpacker(folder)
        self._roots = self._reader.roots
        self.device = torch.device(self._roots["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._kernel = self._reader.value(self._roots["kernel"])
        if code_digest(self._kernel) != self._roots["digest"]:
            raise PortableError(
                f"the copy of {self._kernel.__name__} is not the original: its source, or "
                "something that it uses, is another here"
            )
        self._plans: dict[Config, Planned] = {}

    def compile(self, config: Config) -> list[Launch]:
        """Compile for the arguments; their memory is read only if a hook might look at it."""
        planned = self._plan(config)
        hook = self._hooks.of_config.get(config)
        args, kwargs = self._arguments if hook else self._placeholders
        if hook:
            hook(self._named(planned))
        compiled = self._kernel.run(
            *args, grid=planned.grid, warmup=True, **{**kwargs, **planned.kwargs}
        )
        return [Launch(compiled, planned.grid, self._scalars(planned))]

    def run(self, config: Config) -> list[torch.Tensor]:
        self._launch(config)
        return self._outputs

    def restore(self) -> None:
        # What is made once is made here, for `run` may be under the eyes of a guard.
        _ = self._arguments, self._outputs
        self._reader.regions.restore(self._written)

    def read_only(self) -> list[torch.Tensor]:
        """Arguments in memory that no config may change."""
        regions = self._reader.regions
        return [regions.tensor(view) for view in self._views if view["region"] not in self._written]

    def expected(self) -> Expected | None:
        known = self._roots["expected"]
        if known is None:
            return None
        reference = [self._reader.value(packed) for packed in known["values"]]
        outputs = self._outputs
        guards = [torch.full_like(each, GUARD_VALUE) for each in outputs[len(reference) :]]
        pairs = zip(reference, outputs, strict=False)
        plain = [_at_the_limit(each, output.dtype) for each, output in pairs]
        return Expected([*reference, *guards], [*plain, *guards], slack=1.0)

    def vendors(self) -> dict[str, Callable[[], Any]]:
        return {}

    def _launch(self, config: Config) -> None:
        planned, hooks = self._plan(config), self._hooks
        args, kwargs = self._arguments
        hook = hooks.of_config.get(config)
        if hook:
            hook(self._named(planned))
        if hooks.before:
            hooks.before(self._named(planned))
        self._kernel.run(*args, grid=planned.grid, warmup=False, **{**kwargs, **planned.kwargs})
        if hooks.after:
            hooks.after(self._named(planned), exception=None)

    @functools.cached_property
    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        for name in self._roots["reset_to_zero"]:
            for view in self._reader.views(self._packed_argument(name)):
                self._reader.regions.begin_with_zeros(view)
        return self._read_arguments(self._reader.value)

    @functools.cached_property
    def _placeholders(self) -> tuple[list[Any], dict[str, Any]]:
        return self._read_arguments(self._reader.without_memory)

    def _read_arguments(self, value: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        args = [value(packed) for packed in self._roots["args"]]
        return args, {name: value(packed) for name, packed in self._roots["kwargs"].items()}

    @functools.cached_property
    def _listed(self) -> dict[Config, dict[str, Any]]:
        return {Config.from_json(each["config"]): each for each in self._roots["configs"] or ()}

    @functools.cached_property
    def _hooks(self) -> Hooks:
        value, roots = self._reader.value, self._roots
        of_config = {
            config: value(each["hook"])
            for config, each in self._listed.items()
            if each["hook"] is not None
        }
        return Hooks(value(roots["before"]), value(roots["after"]), of_config)

    def _plan(self, config: Config) -> Planned:
        planned = self._plans.get(config)
        if planned is None:
            planned = self._plans[config] = self._read_plan(config)
        return planned

    def _read_plan(self, config: Config) -> Planned:
        value = self._reader.value
        if self._roots["configs"] is None:
            args, kwargs = self._arguments
            call = Call(tuple(args), kwargs, value(self._roots["grid"]))
            stack = Stack(self._kernel, tuple(value(self._roots["heuristics"])))
            return plan(stack, call, config.as_kwargs())
        listed = self._listed[config]
        kwargs = {name: value(packed) for name, packed in listed["kwargs"].items()}
        return Planned(kwargs, tuple(listed["grid"]))

    def _named(self, planned: Planned) -> dict[str, Any]:
        """Return the arguments by name, as Triton gives them to hooks."""
        args, kwargs = self._arguments
        named = Call(tuple(args), kwargs, planned.grid).named(self._kernel.arg_names)
        return {**named, **planned.kwargs}

    def _scalars(self, planned: Planned) -> tuple[int | float | bool | str, ...]:
        """Return the numbers that a config passes to the launch without changing the code."""
        numbers = {param.name for param in self._kernel.params if not param.is_constexpr}
        return tuple(
            value if isinstance(value, (int, float, str)) else repr(value)
            for name, value in sorted(planned.kwargs.items())
            if name in numbers
        )

    def _packed_argument(self, name: str) -> Any:
        if name in self._roots["kwargs"]:
            return self._roots["kwargs"][name]
        if name not in self._kernel.arg_names:
            raise TrituneError(
                f"{self._kernel.__name__} has no argument {name}: reset_to_zero and the reference "
                f"can name {', '.join(self._kernel.arg_names)}"
            )
        place, args = self._kernel.arg_names.index(name), self._roots["args"]
        return args[place] if place < len(args) else None

    def _views_named(self, names: list[str]) -> list[dict[str, Any]]:
        return self._reader.views([self._packed_argument(name) for name in names])

    @functools.cached_property
    def _views(self) -> list[dict[str, Any]]:
        return self._reader.views([self._roots["args"], *self._roots["kwargs"].values()])

    @functools.cached_property
    def _outputs(self) -> list[torch.Tensor]:
        """Return what is compared after a run: what was written, and the guards around it."""
        regions, known = self._reader.regions, self._roots["expected"]
        views = [view for view in self._views if view["region"] in self._written]
        if known is not None and known["names"] is not None:
            views = self._views_named(known["names"])
        if known is not None and len(views) != len(known["values"]):
            raise TrituneError(
                f"the reference of {self._kernel.__name__} returns {len(known['values'])} tensors "
                f"for {len(views)} that it writes: return a dict from argument names to tensors"
            )
        guarded = sorted({view["region"] for view in views})
        return [*(regions.tensor(view) for view in views), *regions.guards(guarded)]

    @functools.cached_property
    def _written(self) -> frozenset[int]:
        """Return the memory that the kernel changes; the folder keeps it for later processes."""
        path = self._folder / _WRITES_FILE
        known = json.loads(path.read_text()) if path.exists() else {}
        if "regions" not in known:
            known["regions"] = sorted(self._changed_by_some(path, known.get("tried", 0)))
            path.write_text(json.dumps(known))
        return frozenset(known["regions"])

    def _changed_by_some(self, path: Path, tried: int) -> set[int]:
        """Return what the first config that runs changes; everything if none runs."""
        regions, known = self._reader.regions, self._roots["expected"] or {}
        declared = self._views_named([*self._roots["reset_to_zero"], *(known.get("names") or ())])
        for number, config in enumerate(self._candidates()):
            if number < tried:
                continue  # it ended the process that tried it
            path.write_text(json.dumps({"tried": number + 1}))
            try:
                self._launch(config)
                changed = regions.changed()
            except Exception:
                continue  # its own trial will tell why
            finally:
                regions.restore(regions.numbers)
            return changed | {view["region"] for view in declared}
        return set(regions.numbers)

    def _candidates(self) -> Iterator[Config]:
        default = Config.from_json(self._roots["default"])
        yield default
        yield from (config for config in self._listed if config != default)


def _at_the_limit(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a result that is as far from the reference as a correct one may be."""
    if not dtype.is_floating_point:
        return reference.to(dtype)
    exact = reference.double()
    largest = exact.abs().masked_fill(~exact.isfinite(), 0.0).max() if exact.numel() else 0.0
    tolerance = max(_ROUNDINGS * torch.finfo(dtype).eps, _LEAST_TOLERANCE)
    return (exact + tolerance * largest).to(dtype)
