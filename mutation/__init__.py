"""`make mutate`: plants defects where events must not be lost, and counts those that no test finds."""
