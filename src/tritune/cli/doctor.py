"""`tritune doctor`: what is on this machine, what is wrong with it, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

import typer
from rich.markup import escape
from rich.table import Table

from tritune.cli._examination import (
    BackendState,
    Cache,
    Device,
    Examination,
    OptionalPackage,
    Problem,
    SelfTest,
)
from tritune.cli._examine import examine
from tritune.cli._options import JsonOption
from tritune.cli._terminal import console, print_json

# Features worth a word each; the full list runs to a hundred names. `--json` has them all.
_NOTABLE = {
    "sse4.2": "SSE4.2",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avxvnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx512vnni": "AVX-512 VNNI",
    "avx512bf16": "AVX-512 BF16",
    "avx512fp16": "AVX-512 FP16",
    "amx-tile": "AMX",
    "amx-int8": "AMX INT8",
    "amx-bf16": "AMX BF16",
    "neon": "NEON",
    "dotprod": "DOTPROD",
    "fullfp16": "FP16",
    "bf16": "BF16",
    "i8mm": "I8MM",
    "sve": "SVE",
    "sve2": "SVE2",
    "sme": "SME",
}


def command(as_json: JsonOption = False) -> None:
    """Show devices, backends, versions and caches; say what is wrong and how to mend it.

    The exit status is 0 when kernels can run and 1 when a problem prevents it.
    The JSON object is described in docs/doctor.md.
    """
    examination = examine()
    if as_json:
        print_json(as_document(examination))
    else:
        _show(examination)
    if not examination.healthy:
        raise typer.Exit(1)


def as_document(examination: Examination) -> dict[str, object]:
    """Return the JSON form. Fields may be added in later versions; none changes its meaning."""
    return {"schema": 1, "healthy": examination.healthy, **asdict(examination)}


def _show(found: Examination) -> None:
    out = console()
    for title, content in _sections(found).items():
        out.print(f"[bold]{title}[/]")
        for each in content:
            if isinstance(each, str):
                out.print(f"  {each}")
            else:
                out.print(each)


def _sections(found: Examination) -> dict[str, list[str | Table]]:
    """Return the grids and lines of every section, in the order in which they are shown."""
    return {
        "Versions": [
            _grid(
                (name, escape(version) if version else "[red]not usable[/]")
                for name, version in found.versions.items()
            )
        ],
        "Devices": [_grid((device.kind, escape(_describe(device))) for device in found.devices)],
        "Triton backends": [
            _grid([_backend_row(backend) for backend in found.backends] or [("none", "")]),
            "[dim]TRITON_DEFAULT_BACKEND=NAME chooses one; tritune.cpu.enable() takes the CPU.[/]",
        ],
        "Threads": [
            f"{found.threads.count}, from {escape(found.threads.source)}"
            if found.threads
            else "unknown"
        ],
        "Caches": [_grid(map(_cache_row, found.caches))],
        "Self-test": [_self_test_line(found.self_test)],
        "Optional packages": [_grid(map(_package_row, found.optional))],
        "Problems": [line for problem in found.problems for line in _problem_lines(problem)]
        or ["[green]none[/]"],
    }


def _grid(rows: Iterable[Sequence[str]]) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for row in rows:
        grid.add_row(*row)
    return grid


def _backend_row(backend: BackendState) -> tuple[str, ...]:
    state = "[green]in use[/]" if backend.in_use else "active" if backend.active else "inactive"
    return backend.name, state, escape(backend.reason or "")


def _cache_row(cache: Cache) -> tuple[str, ...]:
    state = f"{_size(cache.bytes)} in use" if cache.exists else "will be created"
    writable = "" if cache.writable else ", [red]not writable[/]"
    return cache.name, escape(cache.path), f"{state}{writable} (from {cache.source})"


def _self_test_line(test: SelfTest | None) -> str:
    if test is None:
        return "not run: there is no device to run it on"
    if not test.passed:
        return "[red]failed[/]"
    return f"a kernel was compiled and gave the right answer on {test.device}"


def _package_row(package: OptionalPackage) -> tuple[str, ...]:
    state = escape(package.reason or "")
    if package.usable:
        state = f"[green]usable[/], for {escape(package.serves)}"
    return package.name, package.version or "", state


def _problem_lines(problem: Problem) -> tuple[str, str]:
    colour = "red" if problem.severity == "error" else "yellow"
    first = f"[{colour}]{problem.severity}[/]: {escape(problem.what)}"
    return first, f"  remedy: {escape(problem.remedy)}"


def _describe(device: Device) -> str:
    parts = [device.name]
    if device.cores is not None:
        parts.append(f"{device.cores} cores, {device.threads} hardware threads")
        if device.usable_threads != device.threads:
            parts.append(f"{device.usable_threads} of them usable by this process")
    if device.memory_bytes is not None:
        parts.append(_size(device.memory_bytes))
    if device.target:
        parts.append(device.target)
    if device.vector_bits:
        parts.append(f"{device.vector_bits}-bit vectors")
    notable = [label for name, label in _NOTABLE.items() if name in device.features]
    if notable:
        parts.append(" ".join(notable))
    return "; ".join(parts)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
