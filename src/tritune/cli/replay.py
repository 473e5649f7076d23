"""`tritune replay`: compare search strategies on recorded spaces."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.markup import escape

from tritune.cli._options import JsonOption
from tritune.cli._terminal import console, print_json, table, warn
from tritune.errors import not_allowed

if TYPE_CHECKING:
    from tritune.store.formats.recorded import Recorded
    from tritune.tuning.search.replay import Curve


#: The first bytes of a store's file.
_SQLITE = b"SQLite format 3\0"


class Command(typer.core.TyperCommand):
    """A command whose `--strategy` and `--warm` take several values in a row.

    `--warm` does so only after the files to replay: before them, nobody could tell which is which.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(arguments: Sequence[str]) -> list[str]:
    """Repeat `--warm` and `--strategy` before each of the values that follow them."""
    from tritune.tuning.search import STRATEGIES

    found: list[str] = []
    option, values, files = "", 0, 0
    for argument in arguments:
        if argument.startswith("-") and argument != "-":
            option, values = argument, 0
        elif option == "--seeds" and values == 0:
            values += 1
        elif option in ("--warm", "--strategy") and (
            values == 0 or (files if option == "--warm" else argument in STRATEGIES)
        ):
            if values:
                found.append(option)
            values += 1
        else:
            option, files = "", files + 1
        found.append(argument)
    return found


def command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Recorded spaces: T4 files or tritune's stores."),
    ],
    strategy: Annotated[
        list[str] | None, typer.Option(help="A strategy to compare; all of them by default.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each strategy runs.")] = 10,
    warm: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Recorded spaces of the same kernel that a search may begin from."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare search strategies on recorded spaces: how near to the optimum after 25 to 200 trials.

    Nothing is compiled or measured. A config that failed when it was recorded counts as a trial.
    A space is never its own prior knowledge, also where its file is among those of --warm.
    """
    from tritune.tuning.search import DEFAULT_STRATEGY
    from tritune.tuning.search.replay import ReplayJob, priors_for, replay_all

    names = _strategies(strategy)
    spaces = _load(files)
    others = list(_load(warm or []).values())
    jobs = [ReplayJob(space, priors_for(space, others)) for space in spaces.values()]
    for label, job in zip(spaces, jobs, strict=True):
        if others and not job.warm:
            warn(f"no file of --warm has the parameters of {label}")
    curves = replay_all(jobs, names, seeds, _progress)
    document = as_document(DEFAULT_STRATEGY, names, list(spaces), curves)
    if as_json:
        print_json(document)
    else:
        _show(document, names, curves, seeds)


def as_document(
    default: str, names: Sequence[str], labels: Sequence[str], curves: Sequence[Curve]
) -> dict[str, Any]:
    """Return the JSON form. Fields may be added in later versions; none changes its meaning."""
    return {
        "default": default,
        "strategies": {
            name: {
                "fraction_of_optimum": _at_budgets([c for c in curves if c.strategy == name]),
                "spaces": {
                    label: _at_budgets(
                        [c for c in curves if (c.strategy, c.place) == (name, place)]
                    )
                    for place, label in enumerate(labels)
                },
            }
            for name in names
        },
    }


def _at_budgets(curves: Sequence[Curve]) -> dict[str, float]:
    from tritune.tuning.search.replay import BUDGETS, mean_fractions

    fractions = mean_fractions(curves)
    return {str(budget): fractions[budget - 1] for budget in BUDGETS}


def _strategies(given: Sequence[str] | None) -> list[str]:
    from tritune.tuning.search import STRATEGIES

    for name in given or ():
        if name not in STRATEGIES:
            raise typer.BadParameter(not_allowed("strategy", name, STRATEGIES))
    return list(dict.fromkeys(given or STRATEGIES))


def _load(files: Sequence[Path]) -> dict[str, Recorded]:
    """Return the recorded spaces by file; a store with several tasks has a name for each."""
    found: dict[str, Recorded] = {}
    for file in files:
        spaces = _load_file(file)
        for space in spaces:
            found[str(file) if len(spaces) == 1 else f"{file}: {space.name}"] = space
    return found


def _load_file(path: Path) -> list[Recorded]:
    """Return the recorded spaces of a file: one of a T4 file, one for each task of a store."""
    from tritune.store import FormatError, Store
    from tritune.store.contents import contents
    from tritune.store.formats import t4
    from tritune.store.formats.spaces import to_recorded

    try:
        with path.open("rb") as file:
            is_store = file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}") from None
    if not is_store:
        return [t4.read(path)]
    with Store(path, read_only=True) as store:
        found = to_recorded(contents(store))
    if not found:
        raise FormatError(f"{path} holds no trials to replay: tune something into it first")
    return found


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} replays", end=end, file=sys.stderr, flush=True)


def _show(
    document: Mapping[str, Any], names: Sequence[str], curves: Sequence[Curve], seeds: int
) -> None:
    from tritune.cli._replay_plot import plot
    from tritune.tuning.search.replay import BUDGETS, mean_fractions

    shown = table(("strategy", "space"), tuple(map(str, BUDGETS)))
    for name in names:
        found = document["strategies"][name]
        first = f"{name} (default)" if name == document["default"] else name
        rows = {"all": found["fraction_of_optimum"], **_short(found["spaces"])}
        for label, fractions in rows.items():
            cells = [f"{fractions[str(budget)]:.3f}" for budget in BUDGETS]
            style = "bold" if label == "all" else None
            shown.add_row(first, escape(label), *cells, style=style)
            first = ""
    out = console()
    out.print(f"Fraction of the optimum after so many trials, mean over {seeds} seeds")
    out.print(shown)
    means = {name: mean_fractions([c for c in curves if c.strategy == name]) for name in names}
    out.print(plot(means), markup=False)


def _short(spaces: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spaces by file name, without folders unless two files have the same name."""
    short = {Path(label).name: value for label, value in spaces.items()}
    return short if len(short) == len(spaces) else dict(spaces)
