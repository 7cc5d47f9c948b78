"""Defines a Python data source that does not belong to this project. Spark finds both in the same way."""

SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def read(self, partition):
        yield (42,)


class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "foreign"

    def schema(self):
        return "n INT"

    def reader(self, schema):
        return Reader()
"""


def install(folder):
    """Write a package with the source; return the folder to add to Python's path."""
    package = folder / "foreign" / "pyspark_foreign"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    return package.parent
