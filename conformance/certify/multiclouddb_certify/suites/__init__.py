"""The suites of services that differ from us8 in a documented way; each module holds tests and no harness."""
