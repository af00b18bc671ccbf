"""The conformance kit: does a plugin keep its contract? For the tests of whoever writes one.

    from evalsuite.testing import check_stage

    def test_conformance():
        check_stage(MyStage())

`check_stage`, `check_variant`, `check_workload` and `check_activation` run what they are given on
really trained networks and many numbers, and raise AssertionError with the rule, the culprit and
the cure.
"""

from evalsuite.testing.activations import check_activation
from evalsuite.testing.stages import check_stage
from evalsuite.testing.variants import check_variant
from evalsuite.testing.workloads import check_workload

__all__ = ["check_activation", "check_stage", "check_variant", "check_workload"]
