"""The rows, one module per subject; every row that is found here is in the table.

A row imports a provider or Spark only when it runs.
"""
