"""Ratios that the project watches: each measured in one process, interleaved, medians."""
