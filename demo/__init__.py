"""Shows the main use on real data: 336,776 flights, from the embedded store into a Delta table."""
