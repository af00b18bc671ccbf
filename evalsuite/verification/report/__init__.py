"""Verification in a report: verdicts of single samples, and pictures of counterexamples."""
