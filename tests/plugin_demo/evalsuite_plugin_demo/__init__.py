"""What a third party brings to evalsuite: a stage and its section, a variant, an activation and
a workload.
"""
