"""The conformance kit contains a simulated service, models of what a feed promises, and a loss oracle."""
