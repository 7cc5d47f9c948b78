"""What the tests of this repository share, and authors of providers and tables do not need."""
