"""`tritune db`: look after the store. What it does lives in tritune.store."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tritune.cli import _db_display as display
from tritune.store import FormatError, MissingStoreError, Store, StoreError
from tritune.store.contents import contents
from tritune.store.export import to_text
from tritune.store.formats import recognise
from tritune.store.gc import Rule, collect
from tritune.store.jsonfile import write
from tritune.store.merge import absorb, merge
from tritune.store.summary import summaries
from tritune.store.verify import verify
from tritune.store.winners_file import WinnersFile

FORMATS = ("json", *recognise.WRITERS)

app = typer.Typer(
    name="db", help="Look after the store of tuning results.", pretty_exceptions_enable=False
)

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="LOCATION",
        help="A file's path, or a PostgreSQL URL. [default: TRITUNE_STORE, else the user's cache]",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
KernelOption = Annotated[
    str | None, typer.Option("--kernel", metavar="KERNEL", help="Only this kernel.")
]


@contextmanager
def _told() -> Iterator[None]:
    """Errors as one line: of what was given, exit status 2; of what the store is like, 1."""
    try:
        yield
    except (FormatError, MissingStoreError) as error:
        raise typer.BadParameter(str(error)) from None
    except StoreError as error:
        print(f"tritune: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command("ls")
def list_tasks(
    kernel: KernelOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """List what was tuned: kernel, problem, device, trials, failures and the best time."""
    with _told(), Store(store, read_only=True) as opened:
        found, devices = summaries(opened, kernel), opened.devices()
        if as_json:
            entries = [display.summary_document(each, devices) for each in found]
            _print_json({"store": opened.location, "tasks": entries})
        else:
            display.show_list(found, devices, opened.location)


@app.command("show")
def show_kernel(
    kernel: Annotated[str, typer.Argument(help="A kernel's name, as tritune db ls prints it.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's winners, their speed-up over the default, and what failed and why."""
    with _told(), Store(store, read_only=True) as opened:
        found, devices = summaries(opened, kernel), opened.devices()
        if not found:
            known = sorted({task.kernel for task in opened.tasks()})
            raise typer.BadParameter(
                f"the store has nothing of the kernel {kernel!r}; "
                f"it knows {', '.join(known) or 'none yet: tritune tune fills it'}"
            )
        learned = display.learned_policies(opened, found)
        if as_json:
            _print_json(display.kernel_document(kernel, found, devices, learned))
        else:
            display.show_kernel(kernel, found, devices, learned)


@app.command("export")
def export_store(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="PATH",
            help="A file; for other tools' formats, a folder or one .json file. "
            "[default for json: standard output]",
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
    """Write the store as sorted JSON, for review and for shipping, or in another tool's format."""
    if format not in FORMATS:
        raise typer.BadParameter(f"the format {format!r} is none of {', '.join(FORMATS)}")
    if format != "json" and (winners or output is None):
        wrong = "has no --winners" if winners else "needs a place to write to: give -o FOLDER"
        raise typer.BadParameter(f"the format {format} {wrong}")
    with _told(), Store(store, read_only=True) as opened:
        if format != "json" and output is not None:
            for path in _write_foreign(opened, format, output, kernel):
                print(path)
            return
        if winners:
            text = WinnersFile.of(opened.winners(kernel), opened.devices()).text()
        else:
            text = to_text(contents(opened, kernel))
        if output is None:
            sys.stdout.write(text)
        else:
            write(output, text)


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
    entries: list[dict[str, Any]] = []
    refused = 0
    with _told(), Store(store) as opened:
        for path in files:
            try:
                for each in recognise.files_in(path):
                    name, found = recognise.read(each)
                    added = absorb(opened, found, each)
                    entries.append({"file": str(each), "format": name, "added": asdict(added)})
                    if not as_json:
                        print(f"{each}: {name}, added {added}")
            except FormatError as error:
                # The other files may be good, and are not to blame.
                refused += 1
                print(f"tritune: {' '.join(str(error).split())}", file=sys.stderr)
    if as_json:
        _print_json({"files": entries, "refused": refused})
    if refused:
        raise typer.Exit(2)


@app.command("merge")
def merge_stores(
    sources: Annotated[
        list[str], typer.Argument(metavar="STORE...", help="Stores whose results to add.")
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add everything that other stores have; the order does not matter."""
    entries = []
    with _told(), Store(store) as into:
        for source in sources:
            with Store(source, read_only=True) as other:
                added = merge(into, other)
            entries.append({"store": other.location, "added": asdict(added)})
            if not as_json:
                print(f"{other.location}: added {added}")
    if as_json:
        _print_json({"store": into.location, "merged": entries})


@app.command("verify")
def verify_store(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check that the store is sound; print every problem. The exit status is 1 if there is one."""
    try:
        with Store(store, read_only=True) as opened:
            location, problems = opened.location, verify(opened)
    except MissingStoreError as error:
        raise typer.BadParameter(str(error)) from None
    except StoreError as error:
        location, problems = str(store or ""), [" ".join(str(error).split())]
    if as_json:
        _print_json({"store": location, "sound": not problems, "problems": problems})
    else:
        for problem in problems:
            print(problem)
        if not problems:
            print(f"{location} is sound")
    if problems:
        raise typer.Exit(1)


@app.command("gc")
def collect_garbage(
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=0,
            help="Drop all but the N versions of each kernel's code that were tried last.",
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
    with _told(), Store(store, read_only=dry_run) as opened:
        dropped = collect(opened, Rule(keep, older_than, met), dry_run=dry_run)
    if as_json:
        _print_json({"dry_run": dry_run, **asdict(dropped)})
        return
    print(
        f"{'would drop' if dry_run else 'dropped'} {dropped.trials} trials of {dropped.tasks} "
        f"tasks, {dropped.builds} builds, {dropped.runs} runs, {dropped.met} met problems"
    )
    for kernel, identity, device in dropped.versions:
        print(f"  {kernel}, code {identity}, on {device}")


def _write_foreign(store: Store, format: str, output: Path, kernel: str | None) -> list[Path]:
    """Write another tool's format into a folder, or its only file to the path of a .json file."""
    found = contents(store, kernel)
    if output.suffix != ".json":
        return recognise.WRITERS[format](found, output)
    with tempfile.TemporaryDirectory() as folder:
        written = recognise.WRITERS[format](found, Path(folder))
        if len(written) != 1:
            raise typer.BadParameter(
                f"there are {len(written)} files to write: give -o FOLDER, or choose by --kernel"
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(written[0], output)
    return [output]


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
