"""What a token holds: which partitions are read, from where, and what follows them."""
