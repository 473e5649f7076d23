"""`tritune doctor`: what is here, what is wrong with it, and how to mend it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tritune.cli._examination import Device, Examination
from tritune.cli._examine import examine

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


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show devices, backends, versions and caches; say what is wrong and how to mend it.

    The exit status is 0 when kernels can run and 1 when a problem prevents it.
    The JSON object is described in docs/doctor.md.
    """
    examination = examine()
    if as_json:
        print(json.dumps(as_document(examination), indent=2))
    else:
        # A terminal wraps at its width; a file or a pipe must not cut a line that grep looks for.
        width = None if sys.stdout.isatty() else 1000
        _show(examination, Console(width=width, soft_wrap=True, highlight=False))
    if not examination.healthy:
        raise typer.Exit(1)


def as_document(examination: Examination) -> dict[str, object]:
    """The JSON form. Fields may be added in later versions; none changes its meaning."""
    return {"schema": 1, "healthy": examination.healthy, **asdict(examination)}


def _show(found: Examination, console: Console) -> None:
    _heading(console, "Versions")
    versions = _grid()
    for name, version in found.versions.items():
        versions.add_row(name, escape(version) if version else "[red]not usable[/]")
    console.print(versions)

    _heading(console, "Devices")
    devices = _grid()
    for device in found.devices:
        devices.add_row(device.kind, escape(_describe(device)))
    console.print(devices)

    _heading(console, "Triton backends")
    backends = _grid()
    for backend in found.backends:
        state = "[green]in use[/]" if backend.in_use else "active" if backend.active else "inactive"
        backends.add_row(backend.name, state, escape(backend.reason or ""))
    if not found.backends:
        backends.add_row("none", "")
    console.print(backends)
    console.print(
        "  [dim]TRITON_DEFAULT_BACKEND=NAME chooses one; tritune.cpu.enable() takes the CPU.[/]"
    )

    _heading(console, "Threads")
    if found.threads is None:
        console.print("  unknown")
    else:
        console.print(f"  {found.threads.count}, from {escape(found.threads.source)}")

    _heading(console, "Caches")
    caches = _grid()
    for cache in found.caches:
        state = f"{_size(cache.bytes)} in use" if cache.exists else "will be created"
        writable = "" if cache.writable else ", [red]not writable[/]"
        caches.add_row(cache.name, escape(cache.path), f"{state}{writable} (from {cache.source})")
    console.print(caches)

    _heading(console, "Self-test")
    if found.self_test is None:
        console.print("  not run: there is no device to run it on")
    elif found.self_test.passed:
        console.print(
            f"  a kernel was compiled and gave the right answer on {found.self_test.device}"
        )
    else:
        console.print("  [red]failed[/]")

    _heading(console, "Optional packages")
    optional = _grid()
    for package in found.optional:
        if package.usable:
            state = f"[green]usable[/], for {escape(package.serves)}"
        else:
            state = escape(package.reason or "")
        optional.add_row(package.name, package.version or "", state)
    console.print(optional)

    _heading(console, "Problems")
    for problem in found.problems:
        colour = "red" if problem.severity == "error" else "yellow"
        console.print(f"  [{colour}]{problem.severity}[/]: {escape(problem.what)}")
        console.print(f"    remedy: {escape(problem.remedy)}")
    if not found.problems:
        console.print("  [green]none[/]")


def _heading(console: Console, text: str) -> None:
    console.print(f"[bold]{text}[/]")


def _grid() -> Table:
    return Table(box=None, show_header=False, padding=(0, 0, 0, 2))


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
