"""Compare every model class of the installed transformers with eager, and write the docs' table.

    python -m tests.integrations.transformers_table --results FILE [--only REGEX]

takes about ten minutes on an idle core. Outcomes are appended to FILE, and those that are there are
not computed again; once FILE has all classes, docs/transformers-classes.md and the table of
docs/transformers.md are written from it.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import torch
import transformers

from tests.integrations.compare import NotBuilt, Outcome, outcome
from tests.integrations.tiny import classes

DOCS = Path(__file__).parents[2] / "docs"
LIST = DOCS / "transformers-classes.md"
BEGIN, END = "<!-- the table of classes -->", "<!-- end of the table -->"
#: What each outcome means, in the order of the table.
KINDS = {
    "served": "attention is tritune's, and the numbers are those of eager",
    "refused": "an `IntegrationError` that says what to use instead",
    "left": "no layer of it asks for an attention: nothing to serve, and the numbers are the same",
    "wrong": "differs from eager",
    "not built": "no tiny model, or it does not run with eager on the inputs that are tried",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", default="", help="classes whose names begin like this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    known = _read(arguments.results)
    for name, model_type in classes().items():
        if name not in known and re.match(arguments.only, name):
            try:
                found = outcome(name, model_type)
            except NotBuilt as error:
                found = Outcome("not built", str(error))
            with arguments.results.open("a") as file:
                file.write(json.dumps([name, found.kind, found.detail]) + "\n")
            print(f"{name}: {found.kind}: {found.detail}", flush=True)
    known = _read(arguments.results)
    if known.keys() >= classes().keys():
        write({name: known[name] for name in classes()})


def _read(results: Path) -> dict[str, Outcome]:
    lines = results.read_text().splitlines() if results.exists() else []
    return {name: Outcome(kind, detail) for name, kind, detail in map(json.loads, lines)}


def write(outcomes: dict[str, Outcome]) -> None:
    """Write the list of classes, and the table with their counts."""
    by_type: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, model_type in classes().items():
        by_type[model_type][outcomes[name].kind].append(name)
    rows = [
        f"| {model_type} | {kind} | {', '.join(names)} |"
        for model_type, kinds in sorted(by_type.items())
        for kind, names in sorted(kinds.items())
    ]
    as_sdpa = [name for name, each in outcomes.items() if each.detail.startswith("as sdpa")]
    LIST.write_text(
        f"# Model classes of transformers {transformers.__version__}\n\n"
        "Written by `python -m tests.integrations.transformers_table`; see "
        "[transformers.md](transformers.md) for what the outcomes mean.\n\n"
        f"As `sdpa`, where that differs from eager: {', '.join(as_sdpa)}.\n\n"
        "| model type | outcome | classes |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "## Not built\n\n| reason | classes |\n|---|---|\n" + "\n".join(_reasons(outcomes)) + "\n"
    )
    counts = Counter(each.kind for each in outcomes.values())
    table = "\n".join(f"| {kind} | {counts[kind]} | {meaning} |" for kind, meaning in KINDS.items())
    page = DOCS / "transformers.md"
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(
        f"{before}{BEGIN}\n| outcome | classes | |\n|---|---|---|\n{table}\n{END}{after}"
    )


def _reasons(outcomes: dict[str, Outcome]) -> list[str]:
    reasons = defaultdict(list)
    for name, each in outcomes.items():
        if each.kind == "not built":
            reasons[each.detail[:90].replace("|", "/")].append(name)
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"| {reason} | {len(names)}: {', '.join(names)} |" for reason, names in ordered]


def committed() -> dict[str, str]:
    """The outcome of each class, as the committed list has it."""
    rows = re.findall(r"^\| (\S+) \| (\w[\w ]*) \| (.*) \|$", LIST.read_text(), re.MULTILINE)
    return {name: kind for _, kind, names in rows if kind in KINDS for name in names.split(", ")}


if __name__ == "__main__":
    main()
