"""The rows, one module per subject; every row that is found here is in the table.

A row imports what it needs, a provider or Spark, when it runs.
"""
