"""Branch and bound over parts of a box: linear programs guide it, exact arithmetic decides,
proof files say why.
"""
