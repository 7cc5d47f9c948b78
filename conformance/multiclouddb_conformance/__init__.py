"""The conformance kit contains a simulated service, a model of the promises of a feed, and a loss oracle."""
