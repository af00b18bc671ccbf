"""What a third party brings to evalsuite: a stage, a variant, an activation and a workload, one file each."""
