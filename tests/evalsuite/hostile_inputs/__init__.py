"""Hostile inputs for every command: files that are damaged, that promise too much, or that nobody
would write.

A case is a command line and what writes its files. The same cases are made each time. Every file
that could run code names `PAYLOAD`, which no case may leave behind.
"""

from hostile_inputs.arrays import heads
from hostile_inputs.bombs import bombs
from hostile_inputs.cases import PAYLOAD, Case
from hostile_inputs.documents import documents, settings
from hostile_inputs.models import models, weights
from hostile_inputs.networks import networks, proofs, properties
from hostile_inputs.places import no_files
from hostile_inputs.runs import records, runs, statements
from hostile_inputs.tables import damaged, saved, values

__all__ = ["PAYLOAD", "Case", "every_case"]


def every_case() -> list[Case]:
    """All cases, in the order of their families."""
    families = (
        damaged,
        values,
        heads,
        saved,
        no_files,
        settings,
        weights,
        models,
        networks,
        properties,
        proofs,
        runs,
        statements,
        records,
        documents,
        bombs,
    )
    return [case for family in families for case in family()]
