"""Declare what the stages bring to a report: pruned networks."""
