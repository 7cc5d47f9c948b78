"""What a token holds: the partitions, their positions, what follows them, and how retention changes it."""
