"""What the stage brings to a report: exact verification."""
