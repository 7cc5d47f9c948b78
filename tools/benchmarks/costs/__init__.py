"""Compares what readers of the same feed cost: requests, the unit of the service's bill, and the delay."""
