"""Runs that take hours: real processes, real servers, and one fault after the other."""
