"""`tritune bench`: compare the tuned ops with the default config, other libraries and the limit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tritune.cli import _terminal
from tritune.cli._options import (
    DeviceOption,
    StoreOption,
    device_document,
    parse_problems,
    torch_device,
)
from tritune.errors import not_allowed

if TYPE_CHECKING:
    from tritune.kernels.kernel import Problem
    from tritune.targets.roofline import PeakRates
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
    device: DeviceOption = None,
    seconds: Annotated[
        float, typer.Option(help="How long one problem is measured, at least.")
    ] = 3.0,
    store: StoreOption = None,
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
    from tritune.store import Store

    if not seconds > 0:
        raise typer.BadParameter(f"seconds {seconds:g}, allowed: more than 0")
    if store is not None:
        # A store that is not there would be as good as none, and nobody would know.
        with Store(store, read_only=True):
            os.environ[env.STORE.name] = store
    where = torch_device(device)
    work = _chosen(ops or [], suite, problem or [])
    libraries = _libraries(against, where)
    peaks, rows = _measure(work, where, seconds, libraries)
    document = as_document(where, peaks, rows, libraries)
    if str(json_file) == "-":
        _terminal.print_json(document)
        return
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _show(rows, document)


def _measure(
    work: Sequence[tuple[str, Problem]], device: Any, seconds: float, libraries: Sequence[Library]
) -> tuple[PeakRates, list[Row]]:
    """Measure the device's peaks and every problem; print a line for each."""
    from tritune.targets.roofline import measure_peaks
    from tritune.tuning.workers.device_lock import device_lock
    from tritune.workloads.bench import measure
    from tritune.workloads.catalog import WORKLOADS

    rows = []
    with device_lock(device, waiting=_print_waiting):
        peaks = measure_peaks(device)
        for number, (op, problem) in enumerate(work, 1):
            row = measure(WORKLOADS[op], problem, device, seconds, libraries)
            rows.append(row)
            beside = "" if row.ratio is None else f", {row.ratio:.2f}x {row.vendor}"
            line = f"{op} {_terminal.describe(problem)}: {_ms(row.ours_ms)}{beside}"
            print(f"[{number}/{len(work)}] {line}", file=sys.stderr, flush=True)
    return peaks, rows


def as_document(
    device: Any, peaks: PeakRates, rows: Sequence[Row], libraries: Sequence[Library]
) -> dict[str, Any]:
    """Return the JSON form."""
    from tritune.tuning.measure.environment import versions
    from tritune.workloads.bench import summary

    return {
        "device": device_document(device),
        "versions": versions(),
        "libraries": [library.name for library in libraries],
        "limits": {
            "flops_per_second": dict(peaks.flops_per_second),
            "read_bytes_per_second": peaks.read_bytes_per_second,
            "moved_bytes_per_second": peaks.moved_bytes_per_second,
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
        return parse_problems(ops, texts)
    found = [(op, each) for op, each in problems(suite) if not ops or op in ops]
    if not found:
        raise typer.BadParameter(f"the suite {suite} has no problem of {', '.join(ops)}")
    return found


def _libraries(against: str, device: Any) -> list[Library]:
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


def _print_waiting(holder: int | None) -> None:
    print(_terminal.describe_waiting(holder), file=sys.stderr)


def _show(rows: Sequence[Row], document: dict[str, Any]) -> None:
    # Of several libraries, the time of each, and which was the vendor.
    several = document["libraries"] if len(document["libraries"]) > 1 else []
    numbers = ("ours", "default", *several, "vendor", "ratio", "of limit")
    table = _terminal.table(("op", "problem"), numbers, ("config",))
    for row in rows:
        table.add_row(*map(escape, _cells(row, several)))
    console = _terminal.console()
    console.print(table)
    for line in _summary(rows, document):
        console.print(line, markup=False)


def _cells(row: Row, libraries: Sequence[str]) -> list[str]:
    limit = "?" if row.limit_fraction is None else f"{row.limit_fraction:.0%}"
    return [
        row.op,
        _terminal.describe(row.problem),
        _ms(row.ours_ms),
        _ms(row.default_ms),
        *(_ms(row.libraries_ms.get(each)) for each in libraries),
        "-" if row.vendor_ms is None else f"{_ms(row.vendor_ms)} {row.vendor}",
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        f"{limit} {row.limit}",
        row.source,
    ]


def _summary(rows: Sequence[Row], document: dict[str, Any]) -> Iterator[str]:
    limits, found = document["limits"], document["summary"]
    rates = limits["flops_per_second"].items()
    flops = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {dtype}" for dtype, rate in rates)
    read, moved = (limits[f"{name}_bytes_per_second"] / 1e9 for name in ("read", "moved"))
    yield f"limits at the start: {flops}, {read:.1f} GB/s read, {moved:.1f} GB/s copied"
    if found["geomean_ratio"] is not None:
        worst = min((row for row in rows if row.ratio is not None), key=lambda row: row.ratio or 0)
        yield (
            f"against the vendor: geometric mean {found['geomean_ratio']:.2f}, "
            f"worst {found['min_ratio']:.2f} ({worst.op} {_terminal.describe(worst.problem)})"
        )
    if any(row.limit_fraction is None for row in rows):
        yield "?: faster than the limit that was found, so this machine is busy"
    # Once for each function of an op and reason.
    yield from {
        f"not compared with: {name} in {row.op} {row.problem.fields()['dtype']}: {reason}": None
        for row in rows
        for name, reason in row.failed.items()
    }
    over = found["geomean_tuned_over_default"]
    yield f"tuned over the default config: geometric mean {over:.2f}"


def _ms(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:.1f} ms" if ms >= 10 else f"{ms:.3f} ms"
