"""Reads one page from many partitions at once."""
