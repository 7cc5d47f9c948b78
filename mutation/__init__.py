"""`make mutate` plants defects in code that must not lose events, and counts those that tests do not find."""
