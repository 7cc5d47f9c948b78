"""What keeps providers honest: a simulated service, models of what a feed promises, a loss oracle."""
