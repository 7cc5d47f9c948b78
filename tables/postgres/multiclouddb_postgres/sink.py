"""The sink that keeps a table of PostgreSQL equal to a collection."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import psycopg
import pyarrow as pa

from multiclouddb_api import (
    ChangeFeedPage,
    Checkpoint,
    invalid_request,
)
from multiclouddb_api.checkpoint import check_name
from multiclouddb_api.validators import check_type, local_path, type_name
from multiclouddb_postgres.checkpoints import CHECKPOINTS, saved
from multiclouddb_postgres.long_keys import LongKeys, check_long_keys
from multiclouddb_postgres.server import Connection, check_dsn, repeated, secret_dsn, where
from multiclouddb_postgres.table import PostgresTable, identifier
from multiclouddb_postgres.values import Documents, naming
from multiclouddb_tables.batch import Create, MissingState, Told, batch_of, check_options
from multiclouddb_tables.changes import piece_of, table_of, usual_types
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.conversion import cutter
from multiclouddb_tables.merging import merge_batch
from multiclouddb_tables.rules import check_needed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SINK: Final = "merge_into_postgres"


def merge_into_postgres(
    batch: DataFrame | pa.Table | ChangeFeedPage,
    batch_id: int | None,
    dsn: str | psycopg.Connection[Any],
    table: str,
    app_id: str | None,
    *,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    checkpoint_name: str | None = None,
    create: Create = "first",
    new_columns: Literal["add", "refuse"] = "refuse",
    missing_state: MissingState = "refuse",
    documents: Documents = "json",
    long_keys: LongKeys = "refuse",
    connections: int = 4,
    source: str | None = None,
    columns: Columns | None = None,
    refill: bool = False,
) -> bool:
    """Merge changes into a table of PostgreSQL: one row per document, and a tombstone for a deleted one.

    A page or an Arrow table is merged in one transaction: all of it, or nothing. With `checkpoint_name` the
    same transaction stores the page's token, so no other store is needed. If you pass an open connection, the
    merge is part of your own transaction (`with connection.transaction():`), and whatever you write in this
    transaction takes each change into account exactly once, because it is committed with the token. A batch
    of Spark is written by the executors instead, over a few connections that commit on their own; merging it
    again changes nothing.

    The rules are those of `merge_into_delta`. Changes may come in any order and more than once, because a row
    is replaced only by one with a higher `order_key`. The row of a deleted document stays, with the time of
    the merge in `_deleted_at`, which is null in all other rows. Pass every page, because the notices show
    where a snapshot begins and ends; a stream of Spark that begins with a snapshot needs `checkpoint` for
    this.

    The first merge creates the table, with the columns `key` (the primary key), `order_key`, `timestamp`,
    `new_item_state` and `_deleted_at`, and those of the declaration (`columns`) or, without one, additional
    columns of the batch. A column of the sink that is missing from the batch becomes null with each change.
    In the same schema, the table `multiclouddb_marks` stores which feed fills the table, and which queries
    and snapshots have begun in it.

    Args:
        batch: The DataFrame that `foreachBatch` passes, a pyarrow table with its columns, or a page.
        batch_id: The batch number that Spark passes, or None for changes without one.
        dsn: A connection string, such as `postgresql://user@host/database`, with which Spark's executors
            connect too. Without Spark, it may also be an open connection, which the sink does not close;
            inside a transaction of yours, the sink does not commit.
        table: The name of the table, as `table` or `schema.table`, in the spelling of the server.
        app_id: A name that identifies the query and its checkpoint, as in `merge_into_delta`. Give both
            `app_id` and `batch_id`, or None for both.
        checkpoint: With Spark, the `checkpointLocation` of the query. With `checkpoint_name`, what
            `PostgresCheckpointStore.load` returned before the page was read, None if there was nothing.
        checkpoint_name: The name under which the page's token is stored in `multiclouddb_checkpoints`.
        create: When the sink creates the table, and takes over one that it has not marked: `"first"`, the
            default, `"always"` or `"never"`, as in `merge_into_delta`.
        new_columns: What to do about a column that the table does not have: `"add"` adds it; `"refuse"`, the
            default, refuses the batch.
        missing_state: What to do if the last change of a key has no document, as in `merge_into_delta`.
        documents: The type of the column with the documents: `json`, the default, stores every document as it
            is; `jsonb` refuses some, for example one with the character NUL in a text.
        long_keys: What to do with a key of more than 2,600 bytes of JSON text, for which an index may have no
            room. `"refuse"`, the default, refuses the batch. `"hash"` stores its SHA-256 in `key`, and the
            whole key in the column `_long_key`; to add this column, the user has to own the table. `"skip"`
            leaves out the changes of such keys, and logs and counts them; it is refused on a table that has
            hashes.
        connections: The number of connections over which a batch of Spark is written; 4 by default.
        source: The feed of the rows, as in `merge_into_delta`.
        columns: The declaration of the table's columns, as in `merge_into_delta`.
        refill: As in `merge_into_delta`.

    Returns:
        True if the batch was merged; False if it was empty.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for the reasons of `merge_into_delta`, for a key of more than
            2,600 bytes (`long_keys`), for a text with NUL, and for a document that the server refuses;
            nothing was written then. `CONFLICT` if another worker has stored the checkpoint, or if other
            transactions prevented this one ten times. `TRANSIENT_FAILURE` if the connection was lost: load
            the checkpoint again, because the transaction may have been committed. `NOT_FOUND`,
            `AUTHENTICATION_FAILED`, `AUTHORIZATION_FAILED` and `PERMANENT_FAILURE` (a standby, a full disk)
            come from the server.
        ImportError: The batch is one of Spark, and `multiclouddb-spark` is not installed.
    """
    dsn = secret_dsn(dsn)
    is_page, is_frame = isinstance(batch, ChangeFeedPage), not isinstance(batch, pa.Table | ChangeFeedPage)
    if is_frame and (isinstance(batch, type) or not hasattr(batch, "sparkSession")):
        wanted = "a DataFrame, a pyarrow table or a page"
        raise invalid_request("batch", f"must be {wanted}, not {type_name(batch)}", f"pass {wanted}")
    check_dsn(dsn)
    identifier(table)
    check_options(
        batch_id=batch_id, app_id=app_id, create=create, new_columns=new_columns,
        missing_state=missing_state, source=source, columns=columns, refill=refill,
    )  # fmt: skip
    if documents not in ("json", "jsonb"):
        kind = type_name(documents)
        raise invalid_request("documents", f"is {documents!r}, a {kind}", 'pass "json" or "jsonb"')
    check_long_keys(long_keys)
    check_type("connections", connections, int)
    if connections < 1:
        raise invalid_request("connections", "is less than 1", "give the number of connections")
    check_type("checkpoint_name", checkpoint_name, str, type(None))
    if checkpoint_name is not None:
        check_name(checkpoint_name)
        if not is_page:
            raise invalid_request(
                "checkpoint_name", "is given, but only a page has a token", "pass the page itself"
            )
        check_type("checkpoint", checkpoint, Checkpoint, type(None))
    elif checkpoint is not None:
        local_path("checkpoint", checkpoint)
    if is_frame and not isinstance(dsn, str):
        raise invalid_request(
            "dsn", "is a connection, but executors of Spark cannot share it", "pass a connection string"
        )
    place = where(dsn, table)
    location = checkpoint if isinstance(checkpoint, str | os.PathLike) else None
    said = Told()
    if is_frame or location is not None:
        from pyspark_multiclouddb.checkpoint import told

        said = told(batch, batch_id, app_id, location)
    made = partial(
        batch_of, batch, batch_id, app_id, said,
        is_told=location is not None, create=create, source=source, columns=columns, refill=refill,
    )  # fmt: skip
    if is_frame:
        assert isinstance(dsn, str)
        from multiclouddb_postgres.frames import merge_frame

        return merge_frame(
            cast("DataFrame", batch), dsn, table, place, missing_state, connections,
            {
                "create": create != "never", "new_columns": new_columns, "documents": documents,
                "long_keys": long_keys,
            },
            made, columns,
        )  # fmt: skip
    changes = table_of(cast("pa.Table | ChangeFeedPage", batch))
    work = made(
        pieces=lambda: piece_of(changes, missing_state, cutter(columns, PostgresTable.unheld)),
        empty_schema=lambda: usual_types(changes.select(check_needed(changes.column_names)[:-1])).schema,
    )

    def merge(connection: Connection) -> bool:
        # The checkpoint comes first: of two workers with one name, the second waits here, and conflicts.
        # Rows, marks and token become visible together.
        if checkpoint_name is not None:
            expected = checkpoint.version if isinstance(checkpoint, Checkpoint) else None
            token = cast("ChangeFeedPage", batch).continuation_token
            saved(connection, place.partition("#")[0] + f"#{CHECKPOINTS}", checkpoint_name, token, expected)
        target = PostgresTable(
            connection,
            table,
            create=create != "never",
            new_columns=new_columns,
            documents=documents,
            long_keys=long_keys,
            holds=True,
        )
        merged = merge_batch(target, _SINK, work)
        if checkpoint_name is not None and target.exists:
            target.marks.remember_position(checkpoint_name)
        return merged

    return naming(dsn, place, lambda: repeated(dsn, place, merge))
