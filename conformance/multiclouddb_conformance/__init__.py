"""The conformance kit: a simulated service, models of what a feed promises, and a loss oracle."""
