"""Declare what the stage brings to a report: exact verification."""
