"""`tritune db`: look after the store.

What a command needs is imported when it runs, so that the others, `tritune doctor` above all, start
without it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritune.cli._options import JsonOption
from tritune.cli._terminal import print_json, warn
from tritune.errors import nearest, not_allowed

if TYPE_CHECKING:
    from tritune.store import Store

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
KernelOption = Annotated[
    str | None, typer.Option("--kernel", metavar="KERNEL", help="Only this kernel.")
]


@app.command("ls")
def list_tasks(
    kernel: KernelOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """List what was tuned: kernel, problem, device, trials, failures and the best time."""
    from tritune.cli import _db_display
    from tritune.store.summary import summaries

    with _opened(store) as opened:
        found, devices = summaries(opened, kernel), opened.devices()
        if as_json:
            tasks = [_db_display.summary_document(each, devices) for each in found]
            print_json({"store": opened.location, "tasks": tasks})
        else:
            _db_display.show_list(found, devices, opened.location)


@app.command("show")
def show_kernel(
    kernel: Annotated[str, typer.Argument(help="A kernel's name, as tritune db ls prints it.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a kernel's winners, their speed-up over the default, and what failed and why."""
    from tritune.cli import _db_display
    from tritune.store.summary import summaries

    with _opened(store) as opened:
        found, devices = summaries(opened, kernel), opened.devices()
        if not found:
            known = sorted({task.kernel for task in opened.tasks()})
            raise typer.BadParameter(
                f"the store has nothing of the kernel {kernel!r}{nearest(kernel, known)}; "
                f"it knows {', '.join(known) or 'none yet: tritune tune fills it'}"
            )
        learned = _db_display.learned_policies(opened, found)
        if as_json:
            print_json(_db_display.kernel_document(kernel, found, devices, learned))
        else:
            _db_display.show_kernel(kernel, found, devices, learned)


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
    if format not in FORMATS:
        raise typer.BadParameter(not_allowed("format", format, FORMATS))
    if winners and format != "json":
        raise typer.BadParameter(f"--winners goes with the format json, not with {format}")
    if format == "python" and kernel is None:
        raise typer.BadParameter("the format python is of one kernel: give --kernel KERNEL")
    if format not in ("json", "python") and output is None:
        raise typer.BadParameter(f"the format {format} needs a place to write to: give -o FOLDER")
    with _opened(store) as opened:
        if format == "json":
            _write(output, _winners(opened, kernel) if winners else _everything(opened, kernel))
        elif format == "python":
            _write(output, _learned_code(opened, str(kernel)))
        else:
            for path in _write_foreign(opened, format, Path(str(output)), kernel):
                print(path)


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
    from tritune.store import FormatError
    from tritune.store.formats import recognise
    from tritune.store.merge import absorb

    entries: list[dict[str, Any]] = []
    refused = 0
    with _opened(store, read_only=False) as opened:
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
                warn(error)
    if as_json:
        print_json({"files": entries, "refused": refused})
    if refused:
        raise typer.Exit(2)


@app.command("merge")
def merge_stores(
    sources: Annotated[
        list[str], typer.Argument(metavar="FROM...", help="Stores whose results to add.")
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add to the store everything that other stores have; twice is as good as once."""
    from tritune.store import Store
    from tritune.store.merge import merge

    entries = []
    with _opened(store, read_only=False) as into:
        for source in sources:
            with Store(source, read_only=True) as other:
                added = merge(into, other)
            entries.append({"store": other.location, "added": asdict(added)})
            if not as_json:
                print(f"{other.location}: added {added}")
    if as_json:
        print_json({"store": into.location, "merged": entries})


@app.command("verify")
def verify_store(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check that the store is sound; print every problem. The exit status is 1 if there is one."""
    from tritune.store import MissingStoreError, Store, StoreError
    from tritune.store.verify import verify

    location = store or ""
    try:
        with Store(store, read_only=True) as opened:
            location = opened.location
            problems = verify(opened)
    except MissingStoreError as error:
        raise typer.BadParameter(str(error)) from None
    except StoreError as error:
        problems = [" ".join(str(error).split())]
    if as_json:
        print_json({"store": location, "sound": not problems, "problems": problems})
    else:
        print("\n".join(problems) if problems else f"{location} is sound")
    if problems:
        raise typer.Exit(1)


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
    from tritune.store.gc import Rule, collect

    rule = Rule(keep, older_than, met)
    with _opened(store, read_only=dry_run) as opened:
        dropped = collect(opened, rule, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **asdict(dropped)})
        return
    print(
        f"{'would drop' if dry_run else 'dropped'} {dropped.trials} trials of {dropped.tasks} "
        f"tasks, {dropped.builds} builds, {dropped.runs} runs, {dropped.met} met problems"
    )
    for kernel, identity, device in dropped.versions:
        print(f"  {kernel}, code {identity}, on {device}")


@contextmanager
def _opened(store: str | None, read_only: bool = True) -> Iterator[Store]:
    """Open a store. Errors in what was given have exit status 2, a damaged store has 1."""
    from tritune.store import FormatError, MissingStoreError, Store, StoreError

    try:
        with Store(store, read_only=read_only) as opened:
            yield opened
    except (FormatError, MissingStoreError) as error:
        raise typer.BadParameter(str(error)) from None
    except StoreError as error:
        warn(error)
        raise typer.Exit(1) from None


def _everything(store: Store, kernel: str | None) -> str:
    from tritune.store.contents import contents
    from tritune.store.export import to_text

    return to_text(contents(store, kernel))


def _winners(store: Store, kernel: str | None) -> str:
    from tritune.store.winners_file import WinnersFile

    return WinnersFile.of(store.winners(kernel), store.devices()).text()


def _learned_code(store: Store, kernel: str) -> str:
    """Return what was learned of a kernel, most recently and on any device, as Python."""
    from tritune.cli._db_display import learned_policies
    from tritune.policy.learning.python_code import export_python
    from tritune.store.summary import summaries

    learned = learned_policies(store, summaries(store, kernel)).values()
    if not learned:
        raise typer.BadParameter(
            f"nothing was learned of the kernel {kernel!r} yet: tritune tune does, at its end"
        )
    return "\n\n".join(export_python(policy) for policy in learned)


def _write(output: Path | None, text: str) -> None:
    from tritune.store.jsonfile import write

    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)


def _write_foreign(store: Store, format: str, output: Path, kernel: str | None) -> list[Path]:
    """Write another tool's format into a folder, or its only file to the path of a .json file."""
    from tritune.store.contents import contents
    from tritune.store.formats.recognise import WRITERS

    found, write_all = contents(store, kernel), WRITERS[format]
    if output.suffix != ".json":
        return write_all(found, output)
    with tempfile.TemporaryDirectory() as folder:
        written = write_all(found, Path(folder))
        if len(written) != 1:
            raise typer.BadParameter(
                f"there are {len(written)} files to write: give -o FOLDER, or choose by --kernel"
            )
        _write(output, written[0].read_text(encoding="utf-8"))
    return [output]
