"""`make mutate` puts defects into code that must not lose events, and counts those that no test finds."""
