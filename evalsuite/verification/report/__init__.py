"""What verification brings to a report: verdicts of single samples, and pictures of
counterexamples.
"""
