"""Several runs together: comparing two, asking many, uniting them, one page over all. Nothing here
runs a job.
"""
