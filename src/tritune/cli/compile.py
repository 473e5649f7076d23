"""`tritune compile`: compile and screen a space for targets that need not be here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritune.cli._interrupted import ignore_interrupts
from tritune.cli._options import JobsOption, JsonOption, StoreOption, count_of_jobs
from tritune.cli._terminal import exit_interrupted, print_json

if TYPE_CHECKING:
    from tritune.screening.screen import Screened
    from tritune.screening.task import ScreeningTask
    from tritune.targets.target import Target


def command(
    op: Annotated[str, typer.Argument(metavar="OP", help="The op, such as attention.")],
    target: Annotated[
        list[str],
        typer.Option(
            metavar="TARGET",
            help="cuda:90, hip:gfx942, ...; cpu for this machine's own; all for every GPU.",
        ),
    ],
    problem: Annotated[
        list[str] | None,
        typer.Option(help='A problem, such as "queries=1024 keys=1024 causal=true".'),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Whose problems: a preset's name, or a YAML or JSON file.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of the model's problems: bfloat16 by default, on CPUs float32."),
    ] = None,
    effort: Annotated[
        str, typer.Option(help="How many of the model's problems: quick, normal or full.")
    ] = "quick",
    space: Annotated[
        str, typer.Option(metavar="full|N", help="All configs, or so many, drawn evenly.")
    ] = "full",
    jobs: JobsOption = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PACK", help="Write what is left into a pack."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help='What became of one config and why, such as "BLOCK_M=64 num_warps=4"; what is '
            "not said is the default's. Compiles no other.",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile an op's configs for targets that need not be here, and tell which can work there.

    What cannot be launched, spills badly or is the same as another is dropped; the rest is ranked,
    and can be taken to the machine with the device in a pack, for `tritune tune --pack`. What was
    compiled before is not compiled again: interrupt it, and run it again to go on.
    """
    from tritune.cli._counting_store import CountingStore

    processes = count_of_jobs(jobs) or os.cpu_count() or 1
    if explain is not None and (output is not None or as_json):
        raise typer.BadParameter("--explain is for people: it excludes --json and --output")
    count = _count(space)
    tasks = _tasks(op, problem or [], model, dtype, effort, _targets(target))
    found: list[Screened] = []
    with CountingStore(store) as opened:
        if explain is not None:
            _explain(tasks, explain, opened)
            return
        try:
            _screen_all(found, tasks, opened, count, processes, output, as_json)
        except KeyboardInterrupt:
            ignore_interrupts()
            _interrupted(found, len(tasks), opened, as_json)
    if as_json:
        print_json(as_document(found))


def _screen_all(
    found: list[Screened], tasks: Sequence[ScreeningTask], store: Any, count: int | None, jobs: int,
    output: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Screen one task after the other into `found`, which has those that are done when the user
    interrupts.
    """
    from tritune.cli._compile_display import Display, show, show_pack
    from tritune.screening.packing import make_parts_folder, pack_up
    from tritune.screening.screen import screen

    keep = None if output is None else make_parts_folder(output)
    with Display(len(tasks), quiet) as display:
        for task in tasks:
            display.begin(task)
            screened = screen(task, store, count, jobs, keep=keep, watch=display.update)
            found.append(screened)
            display.end(screened)
    configs = 0 if output is None else pack_up(output, found)
    if not quiet:
        show(found)
        if output is not None:
            show_pack(output, configs)


def _interrupted(found: Sequence[Screened], asked: int, store: Any, as_json: bool) -> None:
    from tritune.cli._compile_display import show

    if found and not as_json:
        show(found)
    exit_interrupted(
        f"interrupted after {len(found)} of {asked} screenings, {store.new_builds} configs were "
        f"compiled and are stored in {store.location}: run it again to go on",
        as_json,
    )


def as_document(found: Sequence[Screened]) -> dict[str, Any]:
    """Return the JSON form: sums over problems where there are several."""
    targets: dict[str, dict[str, Any]] = {}
    for each in found:
        name, values = str(each.task.target), each.to_json()
        targets[name] = _added(targets[name], values) if name in targets else values
    return {"targets": targets}


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: _added(one[name], other[name]) for name in one}
    return one + other


def _count(space: str) -> int | None:
    if space == "full":
        return None
    if not space.isdigit() or int(space) < 1:
        raise typer.BadParameter(f"space {space!r}, allowed: full, or a number of configs")
    return int(space)


def _targets(names: Sequence[str]) -> list[Target]:
    from tritune.screening.service import known_limits
    from tritune.targets.limits import known_targets
    from tritune.targets.target import Target

    found: list[Target] = []
    for name in names:
        if name == "all":
            found += known_targets()
        else:
            parsed = Target.parse("cpu:host" if name == "cpu" else name)
            known_limits(parsed)
            found.append(_cpu(parsed) if parsed.family == "cpu" else parsed)
    return list(dict.fromkeys(found))


def _cpu(target: Target) -> Target:
    """Return the target of a CPU by its own name; refuse one that cannot be compiled for."""
    from tritune.cpu import features

    if target.arch == "host":
        return replace(target, arch=features.host().name)
    try:
        features.resolve(str(target.arch))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return target


def _tasks(
    op: str,
    texts: Sequence[str],
    model: str | None,
    dtype: str | None,
    effort: str,
    targets: Sequence[Target],
) -> list[ScreeningTask]:
    from tritune.screening.task import ScreeningTask
    from tritune.workloads.catalog import workload_named
    from tritune.workloads.problems.models import load_model
    from tritune.workloads.problems.of_model import problems_of

    workload = workload_named(op)
    if texts and model is not None:
        raise typer.BadParameter("--model and --problem exclude each other")
    if model is None:
        if dtype is not None:
            raise typer.BadParameter("--dtype is of a model's problems; --problem has its own")
        problems = [workload.parse(text) for text in texts or [""]]
        return [ScreeningTask(workload, each, target) for target in targets for each in problems]
    chosen = load_model(model)
    found = []
    for target in targets:
        device = "cpu" if target.family == "cpu" else "cuda"
        of_model = problems_of(chosen, [op], effort, dtype, device)
        found += [ScreeningTask(workload, each, target) for _, each in of_model]
    return found


def _explain(tasks: Sequence[ScreeningTask], text: str, store: Any) -> None:
    from tritune.screening.explanation import explanation
    from tritune.screening.screen import screen

    for task in tasks:
        config = task.config(text)
        screened = screen(task, store, jobs=1, only=[config])
        print(explanation(screened, config))
