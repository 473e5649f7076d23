"""What can be tuned and benchmarked: for each op its problems, inputs, reference, vendor and work.

`catalog.py` lists the workloads, `problems.py` the problems that a model meets, `case.py` makes of
both what the tuner works on.
"""

from tritune.workloads.catalog import WORKLOADS, workload_named, workload_of

__all__ = ["WORKLOADS", "workload_named", "workload_of"]
