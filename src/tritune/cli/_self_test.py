# No `from __future__ import annotations`: Triton reads a kernel's annotations when it compiles it.
"""Run a small kernel on the active device. `tritune doctor` starts this as a process of its own."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scale_rows(source, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(source + row * columns + offsets, mask=mask, other=0.0)
    total = tl.sum(values, axis=0)
    tl.store(out + row * columns + offsets, values / total, mask=mask)


def run() -> None:
    """Compile and launch the kernel; exit with a message when its answer is wrong."""
    rows, columns = 5, 27
    device = triton.runtime.driver.active.get_active_torch_device()
    source = torch.arange(1, rows * columns + 1, dtype=torch.float32).reshape(rows, columns)
    source = source.to(device)
    out = torch.zeros_like(source)
    _scale_rows[(rows,)](source, out, columns, BLOCK=32)
    expected = source / source.sum(dim=1, keepdim=True)
    if not torch.allclose(out, expected, rtol=1e-5, atol=0):
        raise SystemExit(f"a sum came out wrong by {(out - expected).abs().max().item():.3g}")


if __name__ == "__main__":
    run()
