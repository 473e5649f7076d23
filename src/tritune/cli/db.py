"""`tritune db`: look after the store.

Only the arguments are here: what a command needs is imported when it runs, so that the others,
`tritune doctor` above all, start without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tritune.errors import not_allowed

FORMATS = ("json", "python", "dejavu", "t4", "vllm-moe")

app = typer.Typer(
    name="db", help="Look after the store of tuning results.", pretty_exceptions_enable=False
)

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="LOCATION",
        help="A file's path, or a PostgreSQL URL; by default TRITUNE_STORE, or else a file in the "
        "user's cache.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
KernelOption = Annotated[
    str | None, typer.Option("--kernel", metavar="KERNEL", help="Only this kernel.")
]


@app.command("ls")
def list_tasks(
    kernel: KernelOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """List what was tuned: kernel, problem, device, trials, failures and the best time."""
    from tritune.cli import _db

    _db.list_tasks(kernel, store, as_json)


@app.command("show")
def show_kernel(
    kernel: Annotated[str, typer.Argument(help="A kernel's name, as tritune db ls prints it.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's winners, their speed-up over the default, and what failed and why."""
    from tritune.cli import _db

    _db.show_kernel(kernel, store, as_json)


@app.command("export")
def export_store(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="PATH",
            help="A file; for other tools' formats, a folder or one .json file. JSON goes to "
            "standard output by default.",
        ),
    ] = None,
    winners: Annotated[
        bool,
        typer.Option("--winners", help="Only the winners, in the file that the pinned mode reads."),
    ] = False,
    format: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="Which format to write.")
    ] = "json",
    kernel: KernelOption = None,
    store: StoreOption = None,
) -> None:  # fmt: skip
    """Write the store as sorted JSON, for review and for shipping, or in another tool's format.

    The format python is what the policy has learned of one kernel, as a function that people read.
    """
    from tritune.cli import _db

    if format not in FORMATS:
        raise typer.BadParameter(not_allowed("format", format, FORMATS))
    if format == "json":
        _db.export_json(output, winners, kernel, store)
    elif format == "python" and not winners:
        if kernel is None:
            raise typer.BadParameter("the format python is of one kernel: give --kernel KERNEL")
        _db.export_policy(output, kernel, store)
    elif winners:
        raise typer.BadParameter(f"--winners goes with the format json, not with {format}")
    elif output is None:
        raise typer.BadParameter(f"the format {format} needs a place to write to: give -o FOLDER")
    else:
        _db.export_foreign(format, output, kernel, store)


@app.command("import")
def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files, or folders with JSON files, in any format it knows."
        ),
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add results from files: tritune's JSON, triton-dejavu, T4, vLLM's MoE JSON, AOTriton."""
    from tritune.cli import _db

    _db.import_files(files, store, as_json)


@app.command("merge")
def merge_stores(
    sources: Annotated[
        list[str], typer.Argument(metavar="FROM...", help="Stores whose results to add.")
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add to the store everything that other stores have; twice is as good as once."""
    from tritune.cli import _db

    _db.merge_stores(sources, store, as_json)


@app.command("verify")
def verify_store(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check that the store is sound; print every problem. The exit status is 1 if there is one."""
    from tritune.cli import _db

    _db.verify_store(store, as_json)


@app.command("gc")
def collect_garbage(
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0,
            help="Drop all but the N versions of a kernel's code that were tried last on a device.",
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="DAYS", min=0,
            help="Drop versions of code last tried before that; with --keep, only beyond N.",
        ),
    ] = None,
    met: Annotated[
        bool, typer.Option("--met", help="Forget the problems that programs met.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Drop results of old code, runs that left nothing, and free the space."""
    from tritune.cli import _db
    from tritune.store.gc import Rule

    _db.collect_garbage(Rule(keep, older_than, met), dry_run, store, as_json)
