"""Print how large the source is: lines, files, functions, folders, repeated lines.

    python tools/size.py                    this checkout
    python tools/size.py --rev c60291b      a git revision and this checkout, side by side
    python tools/size.py DIRECTORY ...      other checkouts, side by side

Code lines are those with code: no blank lines, comments, docstrings. A line is repeated if it is
in a run of six or more lines of code that stands more than once, whatever its indentation.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import tarfile
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "src/tritune"
#: The length of the shortest run of equal lines that counts as repeated.
RUN = 6


def code_lines(text: str, tree: ast.Module) -> list[str]:
    """Return the stripped lines of a file that hold code."""
    lines = {n: line.strip() for n, line in enumerate(text.splitlines(), 1)}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            lines.update(dict.fromkeys(range(value.lineno, (value.end_lineno or 0) + 1), ""))
    return [line for line in lines.values() if line and not line.startswith("#")]


def repeated_lines(files: dict[str, list[str]]) -> int:
    """Count the lines in runs that stand more than once."""
    places = defaultdict(list)
    for name, lines in files.items():
        for start in range(len(lines) - RUN + 1):
            places[tuple(lines[start : start + RUN])].append((name, start))
    repeated = [place for found in places.values() if len(found) > 1 for place in found]
    return len({(name, start + n) for name, start in repeated for n in range(RUN)})


def measure(root: Path) -> tuple[dict[str, float], Counter[str], list[tuple[int, str]]]:
    """Return the figures of a checkout, the lines of each folder, and the longest functions."""
    source, files = root / SOURCE, {}
    lengths, functions = [], []
    folders, in_folder = Counter[str](), Counter[str]()
    for path in sorted(source.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(source))
        tree = ast.parse(text)
        files[name] = code_lines(text, tree)
        lengths.append(len(text.splitlines()))
        for folder in path.relative_to(source).parents:
            folders[f"{folder}/"] += lengths[-1]
        in_folder[str(path.parent)] += 1
        functions += [
            ((node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.name}")
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    sizes = [length for length, _ in functions]
    figures = {
        "lines": sum(lengths),
        "code lines": sum(map(len, files.values())),
        "files": len(files),
        "functions": len(functions),
        "lines of a file, median": statistics.median(lengths),
        "lines of a file, 90th percentile": statistics.quantiles(lengths, n=10)[-1],
        "lines of a function, median": statistics.median(sizes),
        "lines of a function, 90th percentile": statistics.quantiles(sizes, n=10)[-1],
        "files of the fullest folder": max(in_folder.values()),
        "repeated lines": repeated_lines(files),
    }
    return figures, folders, sorted(functions, reverse=True)


def unpack(revision: str, folder: str) -> Path:
    """Write the source of a git revision into a folder."""
    command = ["git", "-C", str(ROOT), "archive", revision, SOURCE]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[], help="this one by default")
    parser.add_argument("--rev", action="append", default=[], help="a git revision, printed first")
    parser.add_argument("--depth", type=int, default=1, help="folders below src/tritune: how deep")
    parser.add_argument("--functions", type=int, default=10, help="so many of the longest ones")
    options = parser.parse_args()
    measured = {}
    for revision in options.rev:
        with tempfile.TemporaryDirectory() as folder:
            measured[revision] = measure(unpack(revision, folder))
    for checkout in options.checkouts or [ROOT]:
        measured[checkout.resolve().name] = measure(checkout)
    width = max(10, *map(len, measured)) + 2
    print(f"{'':40}" + "".join(f"{name:>{width}}" for name in measured))
    all_figures = [figures for figures, _, _ in measured.values()]
    for name in all_figures[0]:
        print(f"{name:40}" + "".join(f"{each[name]:>{width}.10g}" for each in all_figures))
    all_folders = [folders for _, folders, _ in measured.values()]
    for folder in sorted(set().union(*all_folders) - {"./"}):
        if folder.count("/") <= options.depth:
            print(f"{folder:40}" + "".join(f"{each[folder]:>{width}}" for each in all_folders))
    for checkout, (_, _, functions) in measured.items():
        print(f"the longest functions of {checkout}:")
        for length, function in functions[: options.functions]:
            print(f"  {length:5}  {function}")


if __name__ == "__main__":
    main()
