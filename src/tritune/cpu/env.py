"""The CPU backend's environment variables, each declared once. They are read once per process."""

from __future__ import annotations

from tritune.env import Variable


def _thread_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise ValueError("expected a number of threads from 1 to 4096")
    return int(text)


#: Threads that run a kernel's programs; unset: as many as torch.get_num_threads() says.
NUM_THREADS = Variable("TRITUNE_NUM_THREADS", _thread_count)
