"""What ReLU-izing brings to a report: before and after the swap, and the hardness that was
learnt.
"""
