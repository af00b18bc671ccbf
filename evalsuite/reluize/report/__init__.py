"""ReLU-izing in a report: before and after the swap, and the hardness that was learnt."""
