"""The problems that `tritune tune` is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tritune.cli._options import parse_problems, torch_device

if TYPE_CHECKING:
    import torch

    from tritune.kernels.kernel import Problem
    from tritune.pack.contents import Section
    from tritune.store import Store
    from tritune.tuning.autotune.recorded_calls import RecordedCall
    from tritune.workloads.workload import Workload

    Sections = dict[tuple[str, Problem], Section]

DEFAULT_MODEL = "llama-3-8b"


@dataclass(frozen=True)
class Request:
    """The words of the command line; the methods return what they name, or refuse them."""

    ops: Sequence[str]
    model: str | None
    texts: Sequence[str]
    suite: str | None
    recorded: bool
    pack: Path | None
    dtype: str | None
    device: str | None
    effort: str

    @property
    def torch_device(self) -> torch.device:
        return torch_device(self.device)

    def sections(self) -> Sections:
        """Return the sections of the pack by op and problem; none without a pack."""
        from tritune.workloads.tuning_from_pack import unpack

        self._check()
        return {} if self.pack is None else unpack(self.pack, self.torch_device, self.ops)

    def _check(self) -> None:
        from tritune.workloads.catalog import workload_named

        for op in self.ops:
            workload_named(op)
        named = (self.model, self.suite, self.pack)
        ways = (self.recorded, bool(self.texts), *(way is not None for way in named))
        if sum(ways) > 1:
            raise typer.BadParameter(
                "--model, --problem, --suite, --recorded and --pack exclude each other"
            )

    def problems(self, store: Store, sections: Sections) -> list[tuple[Workload, Problem]]:
        """Return the problems to tune, with their workloads."""
        from tritune.workloads.catalog import WORKLOADS
        from tritune.workloads.problems.models import load_model
        from tritune.workloads.problems.of_model import problems_of
        from tritune.workloads.problems.suites import suite
        from tritune.workloads.tuning import problems_met

        if self.pack is not None:
            return [(WORKLOADS[op], problem) for op, problem in sections]
        if self.recorded:
            return problems_met(store, self.torch_device, self.ops)
        if self.suite is not None:
            chosen = suite(self.suite)
            return [(WORKLOADS[op], each) for op, each in chosen if not self.ops or op in self.ops]
        if self.texts:
            return [(WORKLOADS[op], each) for op, each in parse_problems(self.ops, self.texts)]
        found = problems_of(
            load_model(self.model or DEFAULT_MODEL),
            list(self.ops) or None,
            effort=self.effort,
            dtype=self.dtype,
            device=self.torch_device,
        )
        return [(WORKLOADS[name], each) for name, each in found]

    def why_nothing(self, location: str) -> str:
        """Say why there is no problem to tune."""
        of_ops = f" of {', '.join(self.ops)}" if self.ops else ""
        if self.recorded:
            return (
                f"no problem{of_ops} is recorded for {self.torch_device} in {location}: run a "
                "program with `tritune run --record SCRIPT`, or with TRITUNE_MODE=record"
            )
        return f"there is no problem{of_ops} in what was asked for"

    def not_covered(self, store: Store) -> list[str]:
        """Say which problems of a server with the model are not tuned, if a model was meant."""
        from tritune.workloads.problems.models import load_model
        from tritune.workloads.problems.tuned_share import count_tuned, describe_untuned

        if self.pack is not None or self.recorded or self.suite is not None or self.texts:
            return []
        model = load_model(self.model or DEFAULT_MODEL)
        counts = count_tuned(model, store, self.torch_device, self.ops or None)
        said = describe_untuned(model, counts)
        return [f"{said} (--effort and --dtype tune more of them)"] if said else []

    def calls(self, store: Store) -> list[RecordedCall]:
        """Return the calls of other kernels that programs have met: see `tritune run --record`."""
        from tritune.tuning.autotune.recorded_calls import recorded_calls

        if not self.recorded or self.ops:
            return []
        here = self.torch_device.type
        return [call for call in recorded_calls(store) if call.device.type == here]
