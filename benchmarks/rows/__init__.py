"""The rows, one module a subject; what is found here is part of the table.

Whatever a row needs, a provider or Spark, is imported when the row runs.
"""
