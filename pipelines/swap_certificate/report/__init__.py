"""Declare what the stage brings to a report: what the swap can change."""
