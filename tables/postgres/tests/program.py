"""Parts of tests that run in a process of their own: `python program.py PART …`."""

import sys

import psycopg

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, ResourceAddress, connect
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_postgres import PostgresCheckpointStore, merge_into_postgres

ADDRESS = ResourceAddress("main", "orders")


def merge(dsn, count):
    """Merge one batch."""
    merge_into_postgres(rows(*((n, 2, {}) for n in range(int(count)))), 0, dsn, "orders", "app")


def follow(dsn, url):
    """Merge pages, and count each change, until the feed is idle."""
    store = PostgresCheckpointStore(dsn)
    with connect(url) as client, psycopg.connect(dsn) as connection:
        while True:
            saved = store.load("counter")
            start = Beginning() if saved is None else FromContinuationToken(saved.token)
            page = client.read_changes(ChangeFeedRequest(ADDRESS, start, max_page_size=7))
            with connection.transaction():
                merge_into_postgres(
                    page, None, connection, "orders", None, checkpoint=saved, checkpoint_name="counter"
                )
                connection.execute("UPDATE counter SET n = n + %s", (len(page.events),))
            print(len(page.events), flush=True)  # noqa: T201
            if page.idle:
                return


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    {"merge": merge, "follow": follow}[part](*rest)
