"""Options of the CPU backend that kernels with matrix products tune."""

from tritune.space import Parameter, Value

#: The prefetch distance. The best one depends on the machine: with a short one loads wait, with a
#: long one lines are evicted before they are used.
PREFETCH = Parameter("prefetch_bytes", (0, 2048, 16384), ("cpu",))

#: A skinny product has no register blocking to choose; others stream no operand.
CPU_ROWS = (
    "BLOCK_M > 16 or (micro_m == 0 and micro_n == 0 and unroll == 0)",
    "BLOCK_M <= 16 or prefetch_bytes == 0",
)

#: The values of a default config: the backend chooses.
CPU_CHOOSES: dict[str, Value] = {"micro_m": 0, "micro_n": 0, "unroll": 0, "prefetch_bytes": 0}
