"""Measures how late a handler gets each change, with a restart in the middle."""
