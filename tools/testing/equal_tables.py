"""Tests that one declaration and one feed give equal tables in every sink, in the tests of each provider."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from multiclouddb_api import ChangeFeedPage, decode_json
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_api.codec import canonical_json
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.values import VALUES
from multiclouddb_postgres import PostgresTarget, merge_into_postgres
from multiclouddb_tables import Columns
from multiclouddb_tables.contract import Target
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite
from pyspark_multiclouddb import TableTarget, merge_into_delta, merge_into_table
from testing.postgres_server import PostgresServer

__all__ = ["test_one_feed_gives_equal_tables"]

_CATALOG: Final = Path(__file__).parents[2] / "spark/tests/scala_catalog.py"
_TYPES: Final = (
    "boolean", "int64", "float", "double", "decimal(38,9)", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "json",
)  # fmt: skip
_ADDED: Final = {"text": "Grüße, 世界 🌍\n\u2028", "time": "2026-01-31T12:00:00.5Z", "day": "2026-01-31"}
"""Values beside those of the suite, whose text has a NUL, which PostgreSQL does not have."""


def _read(target: Target, columns: Columns) -> dict[str, Any]:
    found = [row for batch in target.rows(own=columns.compared) for row in batch.to_pylist()]
    states = {row["key"]: canonical_json(decode_json(row["state"])) for row in found}
    return {row["key"]: (row["deleted"], row["order_key"], states[row["key"]]) for row in found}


@pytest.mark.xdist_group("jvm")
@pytest.mark.timeout(600)
def test_one_feed_gives_equal_tables(collection: Collection, spark: Any, tmp_path: Path) -> None:
    """Every type of column has every value of the provider, or the value is in `_rescued`."""
    values = {name: VALUES[name] for name in sorted(collection.harness.value_types)} | _ADDED
    for name, value in values.items():
        collection.put(name, value=value)
    for name in ("true", "text"):
        collection.delete(name)
    events = collection.read(collection.begin, len(values) + 2)
    fields = {name for event in events for name in event.new_item_state or ()}
    declared: dict[str, Any] = {
        f"{name} as {kind}": {"path": [name], "type": kind} for name in sorted(fields) for kind in _TYPES
    }
    [key] = events[0].key.components
    columns = Columns({**declared, "the key": {"key": key, "type": "string"}}, misfits="rescue")
    page = ChangeFeedPage(tuple(events), collection.begin)
    batch = pa.Table.from_batches([events_to_arrow(events)])
    frame = spark.createDataFrame(batch)
    lake = runpy.run_path(str(_CATALOG))["table_in"](spark, tmp_path / "lake")
    folders = [tmp_path / "pages", tmp_path / "frames"]
    with PostgresServer() as server:
        merge_into_sqlite(page, None, tmp_path / "shop.db", "orders", None, columns=columns)
        merge_into_delta(page, None, folders[0], None, columns=columns)
        merge_into_postgres(page, None, server.dsn, "pages", None, columns=columns)
        merge_into_delta(frame, 0, folders[1], "query", columns=columns)
        merge_into_table(frame, 0, lake, create_using="test", columns=columns)
        merge_into_postgres(frame, 0, server.dsn, "frames", "query", columns=columns)
        targets: list[Target] = [
            SqliteTable(tmp_path / "shop.db", "orders"),
            *(DeltaTarget(folder) for folder in folders),
            TableTarget(spark, lake),
            *(PostgresTarget(server.dsn, name) for name in ("pages", "frames")),
        ]
        first, *others = (_read(target, columns) for target in targets)
    assert len(first) == len(values)
    assert sum(deleted for deleted, _, _ in first.values()) == 2
    for target, found in zip(targets[1:], others, strict=True):
        assert found == first, target.name
