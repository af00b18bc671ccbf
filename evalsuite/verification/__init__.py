"""Verification in the suite: what is asked of a network of a run, and many instances of files."""
