"""The rows of the benchmarks, one module per subject; every row that is found here appears in the table.

A row imports a provider or Spark only when it runs.
"""
