"""Another Python data source of the session, which Spark finds as it finds this project's."""

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
    """Write a package into a folder for the path of Python; return the folder."""
    package = folder / "foreign" / "pyspark_foreign"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    return package.parent
