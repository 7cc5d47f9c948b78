"""Shows the main use case with real data: 336,776 flights go from the embedded store into a Delta table."""
