"""The contents of a token: partitions, their positions, their children, and the effects of retention."""
