"""`make mutate` plants defects in code that must not lose events, and counts the defects that tests miss."""
