"""What a token holds: which partitions are read, from where and what follows, and what retention takes."""
