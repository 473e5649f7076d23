"""How many lines of device code there are: the functions that Triton compiles, per file.

A line counts if it holds code: signatures and decorators do, blank lines, comments and docstrings
do not. Spaces, default configs and references are no device code. The attention kernels, which are
the files *attention*.py and whatever device code these import, must fit in 1,000 lines together;
the vendor's library has more than 70,000. If they do not fit, the exit status is 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parents[1] / "src" / "tritune" / "kernels"
PACKAGE = "tritune.kernels."
ATTENTION = "*attention*.py"
ATTENTION_LIMIT = 1000

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def device_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions decorated with triton.jit, with or without arguments."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(
            ast.unparse(d.func if isinstance(d, ast.Call) else d) == "triton.jit"
            for d in node.decorator_list
        )
    ]


def count(source: str) -> int:
    """Lines of device code in a file."""
    functions = device_functions(ast.parse(source))
    code = _lines_with_code(source)
    lines: set[int] = set()
    for function in functions:
        first = min(decorator.lineno for decorator in function.decorator_list)
        own = set(range(first, _last_line(function) + 1))
        for node in ast.walk(function):
            own -= _docstring_lines(node)
        lines |= own & code
    return len(lines)


def _lines_with_code(source: str) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def _docstring_lines(node: ast.AST) -> set[int]:
    if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node, clean=False) is None:
        return set()
    return set(range(node.body[0].lineno, _last_line(node.body[0]) + 1))


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def imported(source: str) -> set[str]:
    """The names of the kernel files that a file imports."""
    return {
        f"{node.module.removeprefix(PACKAGE)}.py"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
    }


def measure(folder: Path) -> dict[str, Any]:
    sources = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
    files = {name: lines for name, source in sources.items() if (lines := count(source))}
    attention = {path.name for path in folder.glob(ATTENTION)}
    todo = list(attention)
    while todo:
        found = imported(sources[todo.pop()]) & files.keys() - attention
        attention |= found
        todo += found
    lines = sum(files.get(name, 0) for name in attention)
    return {
        "files": files,
        "total": sum(files.values()),
        "attention": {
            "files": sorted(attention & files.keys()),
            "lines": lines,
            "limit": ATTENTION_LIMIT,
            "fits": lines <= ATTENTION_LIMIT,
        },
    }


def show(result: dict[str, Any]) -> None:
    width = max(len(name) for name in (*result["files"], "total"))
    for name, lines in {**result["files"], "total": result["total"]}.items():
        print(f"{name:{width}} {lines:6,}")
    attention = result["attention"]
    verdict = "within" if attention["fits"] else "OVER"
    print(
        f"attention ({', '.join(attention['files']) or 'none'}): {attention['lines']:,} lines, "
        f"{verdict} the limit of {attention['limit']:,}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument(
        "--folder", type=Path, default=KERNELS, help="where the kernels are (default: tritune's)"
    )
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"--folder {args.folder} is not a folder")
    result = measure(args.folder)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)
    sys.exit(not result["attention"]["fits"])


if __name__ == "__main__":
    main()
