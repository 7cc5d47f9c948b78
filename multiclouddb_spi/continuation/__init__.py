"""Defines the contents of a token: partitions, their positions and children, and the effects of retention."""
