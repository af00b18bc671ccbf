"""Workloads: data + architecture + metric, one file each. Importing them imports no heavy
library.
"""

from evalsuite.workloads.workload import Workload

__all__ = ["Workload"]
