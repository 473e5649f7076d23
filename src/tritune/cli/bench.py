"""`tritune bench`: the tuned ops beside the default config, other libraries and the limit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tritune.kernels.kernel import Problem
    from tritune.targets.roofline import Limits
    from tritune.workloads.bench import Row
    from tritune.workloads.libraries.library import Library

DEFAULT_SUITE = "all"
#: What the ops are compared with: the best library of each row, or the default config only.
VENDOR, DEFAULT = "vendor", "default"


def command(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Ops to measure; all of the suite by default."),
    ] = None,
    suite: Annotated[
        str, typer.Option(help="attention, norms, rope, activations, linear, vendors or all.")
    ] = DEFAULT_SUITE,
    problem: Annotated[
        list[str] | None,
        typer.Option(help='A problem of one op instead, such as "queries=1 keys=4096".'),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="vendor: the fastest of the libraries that are installed; torch, zentorch or "
            "openvino: that one; default: the default config only."
        ),
    ] = VENDOR,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1; what is here by default.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long one problem is measured, at least.")
    ] = 3.0,
    store: Annotated[
        str | None, typer.Option(help="A file, or a database's URL; TRITUNE_STORE by default.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write JSON; - to print it.")
    ] = None,
) -> None:
    """Measure the ops as they are called, in one run, interleaved, with cold caches.

    Beside each: its default config, the fastest correct thing that is installed (torch, and its
    plug-ins for CPUs), and the limit of the hardware, measured in the same run. Uses what
    `tritune tune` has found before.
    """
    from tritune import env
    from tritune.cli._devices import torch_device
    from tritune.store import Store
    from tritune.targets.roofline import measure_limits
    from tritune.tuning.workers.device_lock import device_lock
    from tritune.workloads.bench import measure
    from tritune.workloads.catalog import WORKLOADS

    if not seconds > 0:
        raise typer.BadParameter(f"seconds {seconds:g}, allowed: more than 0")
    if store is not None:
        # A store that is not there would be as good as none, and nobody would know.
        with Store(store, read_only=True):
            os.environ[env.STORE.name] = store
    where = torch_device(device)
    work = _chosen(ops or [], suite, problem or [])
    libraries = _libraries(against, where)
    rows: list[Row] = []
    with device_lock(where, waiting=_say_waiting):
        limits = measure_limits(where)
        for number, (op, each) in enumerate(work, 1):
            row = measure(WORKLOADS[op], each, where, seconds, libraries)
            rows.append(row)
            _report(number, len(work), row)
    document = as_document(where, limits, rows, libraries)
    if json_file is None:
        _show(rows, document)
    elif str(json_file) == "-":
        print(json.dumps(document, indent=2))
    else:
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        _show(rows, document)


def as_document(
    device: Any, limits: Limits, rows: Sequence[Row], libraries: Sequence[Library]
) -> dict[str, Any]:
    """The JSON form."""
    from tritune.targets.device import detect
    from tritune.tuning.measure.environment import versions
    from tritune.workloads.bench import summary

    silicon = detect(device)
    return {
        "device": {
            "name": silicon.name,
            "target": str(silicon.target),
            "fingerprint": silicon.fingerprint,
        },
        "versions": versions(),
        "libraries": [library.name for library in libraries],
        "limits": {
            "flops_per_second": dict(limits.flops_per_second),
            "read_bytes_per_second": limits.read_bytes_per_second,
            "moved_bytes_per_second": limits.moved_bytes_per_second,
        },
        "rows": [row.to_json() for row in rows],
        "summary": summary(rows),
    }


def _chosen(ops: Sequence[str], suite: str, texts: Sequence[str]) -> list[tuple[str, Problem]]:
    from tritune.workloads.catalog import workload_named
    from tritune.workloads.problems.suites import suite as problems

    for op in ops:
        workload_named(op)
    if texts:
        if len(ops) != 1:
            raise typer.BadParameter("--problem needs exactly one op")
        return [(ops[0], workload_named(ops[0]).parse(text)) for text in texts]
    found = [(op, each) for op, each in problems(suite) if not ops or op in ops]
    if not found:
        raise typer.BadParameter(f"the suite {suite} has no problem of {', '.join(ops)}")
    return found


def _libraries(against: str, device: Any) -> list[Library]:
    from tritune.errors import not_allowed
    from tritune.workloads.libraries.library import LIBRARIES, broken, library_named, usable

    if against == DEFAULT:
        return []
    if against == VENDOR:
        for reason in broken():
            print(f"not compared with: {reason}", file=sys.stderr)
        return usable(device)
    if against not in LIBRARIES:
        known = VENDOR, DEFAULT, *LIBRARIES
        raise typer.BadParameter(not_allowed("against", against, known))
    return [library_named(against, device)]


def _say_waiting(holder: int | None) -> None:
    who = "another process" if holder is None else f"process {holder}"
    print(f"waits for {who}, which measures on this device", file=sys.stderr)


def _report(number: int, total: int, row: Row) -> None:
    """One line for each problem, so that a long run can be followed."""
    from tritune.cli._tune_display import described

    beside = "" if row.ratio is None else f", {row.ratio:.2f}x {row.vendor}"
    line = f"[{number}/{total}] {row.op} {described(row.problem)}: {_ms(row.ours_ms)}{beside}"
    print(line, file=sys.stderr, flush=True)


def _show(rows: Sequence[Row], document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from tritune.cli._tune_display import described

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("op", "problem"):
        table.add_column(name)
    # Of several libraries, the time of each, and which was the vendor.
    several = document["libraries"] if len(document["libraries"]) > 1 else []
    for name in ("ours", "default", *several, "vendor", "ratio", "of limit"):
        table.add_column(name, justify="right")
    table.add_column("config")
    for row in rows:
        table.add_row(
            row.op,
            described(row.problem),
            _ms(row.ours_ms),
            _ms(row.default_ms),
            *(_ms(row.libraries_ms[each]) if each in row.libraries_ms else "-" for each in several),
            "-" if row.vendor_ms is None else f"{_ms(row.vendor_ms)} {row.vendor}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            f"{'?' if row.limit_fraction is None else f'{row.limit_fraction:.0%}'} {row.limit}",
            row.source,
        )
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False)
    console.print(table)
    limits = document["limits"]
    flops = ", ".join(
        f"{rate / 1e9:.0f} GFLOP/s in {dtype}" for dtype, rate in limits["flops_per_second"].items()
    )
    read, moved = (limits[f"{name}_bytes_per_second"] / 1e9 for name in ("read", "moved"))
    console.print(f"limits at the start: {flops}, {read:.1f} GB/s read, {moved:.1f} GB/s copied")
    found = document["summary"]
    if found["geomean_ratio"] is not None:
        worst = min((row for row in rows if row.ratio is not None), key=lambda row: row.ratio or 0)
        console.print(
            f"against the vendor: geometric mean {found['geomean_ratio']:.2f}, "
            f"worst {found['min_ratio']:.2f} ({worst.op} {described(worst.problem)})"
        )
    if any(row.limit_fraction is None for row in rows):
        console.print("?: faster than the limit that was found, so this machine is busy")
    for note in _notes(rows):
        console.print(note)
    over = found["geomean_tuned_over_default"]
    console.print(f"tuned over the default config: geometric mean {over:.2f}")


def _notes(rows: Sequence[Row]) -> list[str]:
    """What was not compared with, and why: once for each function of an op and reason."""
    found = {
        f"not compared with: {name} in {row.op} {row.problem.fields()['dtype']}: {reason}": None
        for row in rows
        for name, reason in row.failed.items()
    }
    return list(found)


def _ms(ms: float) -> str:
    return f"{ms:.1f} ms" if ms >= 10 else f"{ms:.3f} ms"
