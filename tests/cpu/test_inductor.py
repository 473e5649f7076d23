"""torch's own compiler can generate Triton code for a CPU, and this backend runs it."""

from pathlib import Path

import pytest

from tests.cpu import programs

PROGRAM = """
import torch
import torch._inductor.config as config

config.cpu_backend = "triton"
config.compile_threads = 1

def normalised(x):
    return torch.nn.functional.gelu(torch.softmax(x, -1) - x.mean(-1, keepdim=True))

x = torch.randn(64, 513)
torch.testing.assert_close(torch.compile(normalised)(x), normalised(x))
print("agrees")
"""


@pytest.mark.cxx
def test_torch_compile_runs_its_triton_code_on_the_cpu(tmp_path: Path):
    result = programs.run(tmp_path, PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    assert "agrees" in programs.check(result)
