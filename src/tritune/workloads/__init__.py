"""Everything that is needed to tune and benchmark an op: one file per op, and what they share.

`catalog.py` lists the workloads, `problems/` makes their problems, `libraries/` calls what other
libraries offer, `case.py` makes of a problem what the tuner works on, and `tuning.py` is the home
of `tritune.tune`.
"""

from tritune.workloads.catalog import WORKLOADS, workload_named, workload_of

__all__ = ["WORKLOADS", "workload_named", "workload_of"]
