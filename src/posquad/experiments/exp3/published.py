"""The published recovery rate that the remark and the panel on iteration budgets discuss."""

PUBLISHED_RATIO = 2  # n/p
PUBLISHED_RATE = 0.125  # recovered trials over all trials at that ratio
