"""What the stage brings to a report: quality in float."""
