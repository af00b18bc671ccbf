"""Declare what the stage brings to a report: quality in float."""
