"""The tables that the demo can fill: of Delta, of a catalog of Spark, or of PostgreSQL (`TARGET=…`)."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from demo.places import Places
from multiclouddb_conformance.postgres_server import PostgresServer
from multiclouddb_postgres import merge_into_postgres
from multiclouddb_tables.delta_log import committed
from multiclouddb_tables.sql import quoted
from multiclouddb_verify import DifferenceKind
from pyspark_multiclouddb import live_rows, local_session, merge_into_delta, merge_into_table

__all__ = ["SPARK_TABLE", "Target", "in_catalog", "start_target", "target_of"]

_APP: Final = "demo-flights"
_DSN: Final = "DEMO_DSN"
_TABLE: Final = "flights"
SPARK_TABLE: Final = "lake.shop.flights"
"""The table that Spark merges, in the tests' catalog: no Python package has the jars of Iceberg or Delta."""
_CATALOG: Final = Path(__file__).parents[1] / "spark" / "tests" / "scala_catalog.py"
_QUICK_JAVA: Final = _CATALOG.with_name("jvm_settings.py")
_CLASSES: Final = "SPARK_DIST_CLASSPATH"


class Target(Protocol):
    """A table, and how the demo merges, reads and damages it."""

    option: str | None
    """The table for `multiclouddb verify --target`; None if only a program can name it."""

    @property
    def kinds(self) -> Sequence[DifferenceKind]:
        """The kinds of damage that the table allows."""
        ...

    def merge(self, rows: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch."""
        ...

    def rows(self) -> Iterator[tuple[str, str]]:
        """Return key and document of each row that is no tombstone, the oldest first."""
        ...

    def damage(self, key: str, kind: DifferenceKind) -> None:
        """Damage the row of a key."""
        ...


def start_target(stack: ExitStack) -> None:
    """Start the target's server and prepare Java; the demo's processes find both in the environment."""
    if _name() == "postgres":
        os.environ[_DSN] = stack.enter_context(PostgresServer()).dsn
    # Spark starts twice, so the demo uses the tests' archive of Java's classes. The first run makes it.
    os.environ.update(runpy.run_path(str(_QUICK_JAVA))["quick_start"]())
    if _name() == "spark":
        os.environ[_CLASSES] = str(runpy.run_path(str(_CATALOG))["catalog_jar"]())


def target_of(places: Places) -> Target:
    """Return the table that `TARGET` names."""
    made: Target = _TARGETS[_name()](places)
    return made


def _name() -> str:
    name = os.environ.get("TARGET") or "delta"
    if name not in _TARGETS:
        raise SystemExit(f"TARGET must be one of {', '.join(_TARGETS)}, not {name!r}")
    return name


class _Delta:
    """A Delta table in the folder of the run."""

    kinds = tuple(kind for kind in DifferenceKind if kind is not DifferenceKind.FOREIGN)

    def __init__(self, places: Places) -> None:
        self._path = places.table
        self.option = f"delta:{places.table}"

    def merge(self, rows: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch."""
        merge_into_delta(rows, batch_id, self._path, _APP)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Return key and document of each row that is no tombstone, the oldest first."""
        found = live_rows(self._path, ["key", "order_key", "new_item_state"]).read_all()
        found = found.sort_by([("order_key", "ascending"), ("key", "ascending")])
        yield from zip(found["key"].to_pylist(), found["new_item_state"].to_pylist(), strict=True)

    def damage(self, key: str, kind: DifferenceKind) -> None:
        """Damage the row of a key."""
        table = DeltaTable(self._path)
        this = f"key = {quoted(key)}"

        def change(**values: str) -> Callable[[], object]:
            return lambda: table.update(predicate=this, updates=values)

        match kind:
            case DifferenceKind.MISSING:
                committed(table, lambda: table.delete(this))
            case DifferenceKind.STALE:
                committed(table, change(new_item_state="""'{"dest":"???"}'"""))
            case DifferenceKind.UNREADABLE:
                committed(table, change(new_item_state="'{not json'"))
            case DifferenceKind.TOMBSTONE:
                committed(table, change(new_item_state="NULL", _deleted_at="to_timestamp_micros(1)"))
            case DifferenceKind.BLOCKED:
                committed(table, change(order_key="'~'"))
            case DifferenceKind.DUPLICATE | DifferenceKind.GHOST | DifferenceKind.FOREIGN:
                # A copy of any row has all columns.
                copied = table.to_pyarrow_dataset().scanner(use_threads=False).head(1).to_pylist()[0]
                copied |= {"key": key, "new_item_state": "{}", "_deleted_at": None}
                row = pa.Table.from_pylist([copied], schema=table.to_pyarrow_dataset().schema)
                committed(table, lambda: write_deltalake(table, row, mode="append"))


class _Postgres:
    """A table of a PostgreSQL server that runs as long as the demo."""

    # The primary key allows no second row, and the type `json` no text that is none.
    kinds = (
        DifferenceKind.MISSING,
        DifferenceKind.GHOST,
        DifferenceKind.STALE,
        DifferenceKind.TOMBSTONE,
        DifferenceKind.BLOCKED,
    )
    _DAMAGE: Final = {
        DifferenceKind.MISSING: "DELETE FROM flights WHERE key = %s",
        DifferenceKind.GHOST: "INSERT INTO flights (key, order_key, new_item_state) VALUES (%s, '0', '{}')",
        DifferenceKind.STALE: """UPDATE flights SET new_item_state = '{"dest":"???"}' WHERE key = %s""",
        DifferenceKind.TOMBSTONE: (
            "UPDATE flights SET new_item_state = NULL, _deleted_at = now() WHERE key = %s"
        ),
        DifferenceKind.BLOCKED: "UPDATE flights SET order_key = '~' WHERE key = %s",
    }

    def __init__(self, places: Places) -> None:
        del places
        self._dsn = os.environ[_DSN]
        self.option = f"postgres:{self._dsn}#{_TABLE}"

    def merge(self, rows: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch."""
        merge_into_postgres(rows, batch_id, self._dsn, _TABLE, _APP)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Return key and document of each row that is no tombstone, the oldest first."""
        query = (
            "SELECT key, new_item_state::text FROM flights WHERE _deleted_at IS NULL ORDER BY order_key, key"
        )
        with psycopg.connect(self._dsn) as connection:
            yield from connection.execute(query)

    def damage(self, key: str, kind: DifferenceKind) -> None:
        """Damage the row of a key."""
        with psycopg.connect(self._dsn) as connection:
            connection.execute(self._DAMAGE[kind], (key,))


def in_catalog(spark: SparkSession, places: Places) -> SparkSession:
    """Return the session, which now knows the catalog with the table."""
    spark.conf.set("spark.sql.catalog.lake", "multiclouddb.test.Catalog")
    spark.conf.set("spark.sql.catalog.lake.root", str(places.table.resolve()))
    return spark


class _Spark:
    """A table in the folder of the run, which Spark itself merges."""

    kinds = tuple(kind for kind in DifferenceKind if kind is not DifferenceKind.FOREIGN)
    option = None
    _DAMAGE: Final = {
        DifferenceKind.MISSING: "DELETE FROM {table} WHERE key = {key}",
        DifferenceKind.STALE: """UPDATE {table} SET new_item_state = '{{"dest":"???"}}' WHERE key = {key}""",
        DifferenceKind.UNREADABLE: "UPDATE {table} SET new_item_state = '{{not json' WHERE key = {key}",
        DifferenceKind.TOMBSTONE: "UPDATE {table} SET new_item_state = NULL, "
        "_deleted_at = current_timestamp() "
        "WHERE key = {key}",
        DifferenceKind.BLOCKED: "UPDATE {table} SET order_key = '~' WHERE key = {key}",
        DifferenceKind.DUPLICATE: (
            "INSERT INTO {table} (key, order_key, new_item_state) VALUES ({key}, '0', '{{}}')"
        ),
        DifferenceKind.GHOST: (
            "INSERT INTO {table} (key, order_key, new_item_state) VALUES ({key}, '0', '{{}}')"
        ),
    }

    def __init__(self, places: Places) -> None:
        self._places = places

    def merge(self, rows: DataFrame, batch_id: int) -> None:
        """Merge a micro-batch."""
        in_catalog(rows.sparkSession, self._places)
        merge_into_table(rows, batch_id, SPARK_TABLE, create_using="files")

    def rows(self) -> Iterator[tuple[str, str]]:
        """Return key and document of each row that is no tombstone, the oldest first."""
        query = (
            f"SELECT key, new_item_state FROM {SPARK_TABLE} WHERE _deleted_at IS NULL ORDER BY order_key, key"
        )
        for row in self._session().sql(query).toArrow().to_pylist():
            yield row["key"], row["new_item_state"]

    def damage(self, key: str, kind: DifferenceKind) -> None:
        """Damage the row of a key, beside the pipeline, whose commits may come first."""
        text = quoted(key.replace("\\", "\\\\"))
        spark = self._session()
        while True:
            try:
                spark.sql(self._DAMAGE[kind].format(table=SPARK_TABLE, key=text))
            except Exception as error:
                if "ConcurrentModificationException" not in str(error):
                    raise
            else:
                return

    def _session(self) -> SparkSession:
        return in_catalog(local_session("table"), self._places)


_TARGETS: Final[Mapping[str, Any]] = {"delta": _Delta, "postgres": _Postgres, "spark": _Spark}
