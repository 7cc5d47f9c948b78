"""Runs the contract of sinks on tables of PostgreSQL, with keys as they are and with their hashes."""

import psycopg
import pytest

from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_conformance.targets import Death
from multiclouddb_postgres import PostgresTarget, merge_into_postgres


class PostgresSink:
    def __init__(self, dsn, left, long_keys):
        self.dsn, self.left, self.target = dsn, left, PostgresTarget(dsn, "orders")
        self.long_keys = long_keys

    def merge(self, batch, batch_id=None, app_id=None, **options):
        return merge_into_postgres(
            batch, batch_id, self.dsn, "orders", app_id, long_keys=self.long_keys, **options
        )

    def drop(self):
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DROP TABLE orders")

    def dies(self, dice, chance=0.0):
        self.left.update(dice=dice, chance=chance)


@pytest.fixture(params=["refuse", pytest.param("hash", marks=pytest.mark.soak)])
def sink(dsn, monkeypatch, request):
    """Die before or after a statement, a COPY, or the commit of a transaction."""
    if request.param == "hash":
        monkeypatch.setattr("multiclouddb_postgres.long_keys.MOST_KEY_BYTES", 0)
    left = {"dice": None, "chance": 0.0}

    def patched(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            dice = left["dice"]
            if dice is None or dice.random() >= left["chance"]:
                return original(*args, **kwargs)
            left["dice"] = None
            if dice.random() < 0.5:
                original(*args, **kwargs)
            elif name == "__exit__":
                original(args[0], Death, Death(), None)
            raise Death

        monkeypatch.setattr(owner, name, call)

    patched(psycopg.Connection, "execute")
    patched(psycopg.Cursor, "copy")
    patched(psycopg.Transaction, "__exit__")
    return PostgresSink(dsn, left, request.param)
