"""The contents of a token: partitions, their positions, what follows them, and the effects of retention."""
