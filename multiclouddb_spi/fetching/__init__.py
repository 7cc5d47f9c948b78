"""Fetches from single partitions on a thread pool, and keeps the state of one call for each partition."""
