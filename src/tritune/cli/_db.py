"""What the commands of `tritune db` do, once their arguments are known."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from tritune.cli import _db_display as display
from tritune.errors import nearest
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


def list_tasks(kernel: str | None, store: str | None, as_json: bool) -> None:
    with _told(), Store(store, read_only=True) as opened:
        found, devices = summaries(opened, kernel), opened.devices()
        if as_json:
            entries = [display.summary_document(each, devices) for each in found]
            _print_json({"store": opened.location, "tasks": entries})
        else:
            display.show_list(found, devices, opened.location)


def show_kernel(kernel: str, store: str | None, as_json: bool) -> None:
    with _told(), Store(store, read_only=True) as opened:
        found, devices = summaries(opened, kernel), opened.devices()
        if not found:
            known = sorted({task.kernel for task in opened.tasks()})
            raise typer.BadParameter(
                f"the store has nothing of the kernel {kernel!r}{nearest(kernel, known)}; "
                f"it knows {', '.join(known) or 'none yet: tritune tune fills it'}"
            )
        learned = display.learned_policies(opened, found)
        if as_json:
            _print_json(display.kernel_document(kernel, found, devices, learned))
        else:
            display.show_kernel(kernel, found, devices, learned)


def export_policy(output: Path | None, kernel: str, store: str | None) -> None:
    """Write what was learned of a kernel, most recently and on any device, as Python."""
    from tritune.policy.python_code import export_python

    with _told(), Store(store, read_only=True) as opened:
        found = summaries(opened, kernel)
        learned = list(display.learned_policies(opened, found).values())
        if not learned:
            raise typer.BadParameter(
                f"nothing was learned of the kernel {kernel!r} yet: tritune tune does, at its end"
            )
        text = "\n\n".join(export_python(policy) for policy in learned)
        if output is None:
            sys.stdout.write(text)
        else:
            write(output, text)


def export_json(output: Path | None, winners: bool, kernel: str | None, store: str | None) -> None:
    with _told(), Store(store, read_only=True) as opened:
        if winners:
            text = WinnersFile.of(opened.winners(kernel), opened.devices()).text()
        else:
            text = to_text(contents(opened, kernel))
        if output is None:
            sys.stdout.write(text)
        else:
            write(output, text)


def export_foreign(format: str, output: Path, kernel: str | None, store: str | None) -> None:
    """Write another tool's format into a folder, or its only file to the path of a .json file."""
    with _told(), Store(store, read_only=True) as opened:
        found = contents(opened, kernel)
        writer = recognise.WRITERS[format]
        if output.suffix == ".json":
            _write_only_file(lambda folder: writer(found, folder), output)
            written = [output]
        else:
            written = writer(found, output)
    for path in written:
        print(path)


def import_files(files: Sequence[Path], store: str | None, as_json: bool) -> None:
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


def merge_stores(sources: Sequence[str], store: str | None, as_json: bool) -> None:
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


def verify_store(store: str | None, as_json: bool) -> None:
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
        _print_json({"store": location, "sound": not problems, "problems": problems})
    else:
        print("\n".join(problems) if problems else f"{location} is sound")
    if problems:
        raise typer.Exit(1)


def collect_garbage(rule: Rule, dry_run: bool, store: str | None, as_json: bool) -> None:
    with _told(), Store(store, read_only=dry_run) as opened:
        dropped = collect(opened, rule, dry_run=dry_run)
    if as_json:
        _print_json({"dry_run": dry_run, **asdict(dropped)})
        return
    print(
        f"{'would drop' if dry_run else 'dropped'} {dropped.trials} trials of {dropped.tasks} "
        f"tasks, {dropped.builds} builds, {dropped.runs} runs, {dropped.met} met problems"
    )
    for kernel, identity, device in dropped.versions:
        print(f"  {kernel}, code {identity}, on {device}")


def _write_only_file(write_all: Callable[[Path], list[Path]], output: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = write_all(Path(folder))
        if len(written) != 1:
            raise typer.BadParameter(
                f"there are {len(written)} files to write: give -o FOLDER, or choose by --kernel"
            )
        write(output, written[0].read_text(encoding="utf-8"))


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
