"""Compare the tuned KERNEL with torch: python -m KERNEL.benchmark"""

import argparse

import torch
from triton.testing import do_bench

from .op import KERNEL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 256, 4096])
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{'rows':>8}{'KERNEL us':>16}{'torch us':>12}{'speed-up':>10}")
    for rows in options.rows:
        dtype = getattr(torch, options.dtype)
        x = torch.randn(rows, options.columns, device=device, dtype=dtype)
        KERNEL(x)  # the first call tunes, unless a winner is stored
        ours, theirs = (
            1000 * do_bench(call, return_mode="median")
            for call in (lambda x=x: KERNEL(x), lambda x=x: torch.softmax(x, dim=-1))
        )
        print(f"{rows:8}{ours:16.1f}{theirs:12.1f}{theirs / ours:10.2f}")


if __name__ == "__main__":
    main()
