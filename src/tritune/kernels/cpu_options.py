"""The CPU backend's own options, where kernels of products tune them."""

from tritune.space import Parameter, Value

#: How far ahead of the reading memory is asked for. What is best is the machine's own: too near,
#: and memory is waited for, too far, and lines are gone before they are used.
PREFETCH = Parameter("prefetch_bytes", (0, 2048, 16384), ("cpu",))

#: With few rows a product has no tile of registers to choose; with many, nothing streams by.
CPU_ROWS = (
    "BLOCK_M > 16 or (micro_m == 0 and micro_n == 0 and unroll == 0)",
    "BLOCK_M <= 16 or prefetch_bytes == 0",
)

#: The values of a default config: the backend knows better than a rule of thumb.
CPU_CHOOSES: dict[str, Value] = {"micro_m": 0, "micro_n": 0, "unroll": 0, "prefetch_bytes": 0}
