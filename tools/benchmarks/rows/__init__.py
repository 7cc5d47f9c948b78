"""The rows of the benchmarks, with one module per subject. The table contains every row in this package.

A row imports a provider or Spark only when it runs.
"""
