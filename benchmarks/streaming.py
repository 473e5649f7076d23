"""Kernels that only stream memory, on this CPU, against torch in the same run.

Vector add (examples/vector_add.py against torch.add) and softmax of rows of 4096 columns
(examples/softmax.py against torch's), both in fp32. Each pair writes into the same tensor, which
exists already. Sums must equal torch's to the bit, softmax is compared with float64, before
anything is timed. In each round every candidate runs once; the table shows the median time of a
call. GB/s counts what must be moved: each input read once, each output written once. The ratio is
torch's median over ours: 1 is torch's speed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from examples.softmax import softmax
from examples.vector_add import vector_add

import tritune.cpu
from benchmarks import timing

ELEMENTS = (2**24, 2**25, 2**26)
BLOCKS = (1024, 4096, 16384)
ROWS_PER_PROGRAM = (1, 4, 16)


def measure_add(elements: int, seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(elements, generator=generator) for _ in range(2))
    out, expected = torch.empty_like(x), x + y
    candidates = {
        f"block {block}": lambda block=block: vector_add(x, y, out=out, block=block)
        for block in BLOCKS
    }
    for name, run in candidates.items():
        out.fill_(float("nan"))
        run()
        if not torch.equal(out, expected):
            raise SystemExit(f"the vector add with {name} is wrong")
    del expected

    work = {"gb_per_second": 3 * elements * x.element_size() / 1e9}
    comparison = timing.compare(candidates, lambda: torch.add(x, y, out=out), seconds, work)
    return {"kernel": "vector add", "elements": elements, **comparison}


def measure_softmax(rows: int, columns: int, seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    out, by_torch, exact = torch.empty_like(x), x.softmax(dim=1), x.double().softmax(dim=1)
    candidates = {
        f"rows {count}": lambda count=count: softmax(x, out=out, rows_per_program=count)
        for count in ROWS_PER_PROGRAM
    }
    for name, run in candidates.items():
        out.fill_(float("nan"))
        run()
        timing.require_accurate(f"the softmax with {name} per program", out, by_torch, exact)
    del by_torch, exact

    # torch.softmax takes no `out`; this is what it calls.
    run_torch = torch.ops.aten._softmax.out
    work = {"gb_per_second": 2 * rows * columns * x.element_size() / 1e9}
    comparison = timing.compare(candidates, lambda: run_torch(x, 1, False, out=out), seconds, work)
    return {"kernel": "softmax", "rows": rows, "columns": columns, **comparison}


def show(result: dict[str, Any]) -> None:
    for comparison in result["comparisons"]:
        sizes = [
            f"{comparison[name]} {name}"
            for name in ("elements", "rows", "columns")
            if name in comparison
        ]
        timing.show_comparison(f"{comparison['kernel']} of {' and '.join(sizes)}, fp32", comparison)


def main() -> None:
    parser = timing.arguments(__doc__, seconds=5)
    parser.add_argument(
        "--elements",
        type=timing.at_least_one,
        nargs="+",
        default=ELEMENTS,
        help=f"lengths of the vectors to add (default: {' '.join(map(str, ELEMENTS))})",
    )
    parser.add_argument(
        "--rows",
        type=timing.at_least_one,
        default=8192,
        help="of the softmax (default: %(default)s)",
    )
    parser.add_argument(
        "--columns",
        type=timing.at_least_one,
        default=4096,
        help="of the softmax (default: %(default)s)",
    )
    args = parser.parse_args()
    tritune.cpu.enable()
    comparisons = [measure_add(elements, args.seconds) for elements in args.elements]
    comparisons.append(measure_softmax(args.rows, args.columns, args.seconds))
    timing.report({"benchmark": "streaming", "comparisons": comparisons}, args.json, show)


if __name__ == "__main__":
    main()
