"""Declare what the stage brings to a report: certified robustness."""
