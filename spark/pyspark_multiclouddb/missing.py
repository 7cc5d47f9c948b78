"""Makes the error for a missing or outdated PySpark."""

from importlib import import_module


def no_pyspark(name: str) -> ImportError:
    """Return the error to raise for a function that needs PySpark.

    Args:
        name: The name of the function.
    """
    try:
        trouble = f"this is {import_module('pyspark').__version__}; install a newer one"
    except ModuleNotFoundError:
        trouble = 'it is not installed; run: pip install "multiclouddb[spark]"'
    return ImportError(f"{name} needs PySpark 4.0 or newer: {trouble}")
