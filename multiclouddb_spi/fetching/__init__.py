"""Keeps one stream for each partition that is read, and runs their fetches on a thread pool."""
