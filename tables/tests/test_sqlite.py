"""Runs the contract of a table on SQLite, and what SQLite does to rows in silence."""

import sqlite3
from functools import partial

import pytest

from multiclouddb_conformance.sink_harness import Death
from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite


class Killer:
    """Dice that decide whether the process dies before or after a statement that writes."""

    def __init__(self):
        self.dice, self.chance = None, 0.0

    def die(self):
        if self.dice is not None and self.dice.random() < self.chance:
            self.dice = None
            raise Death


class Mortal(sqlite3.Connection):
    """A connection of a process that may die."""

    killer = Killer()

    def execute(self, statement, *arguments):
        if statement.startswith(("SELECT", "PRAGMA", "BEGIN")):
            return super().execute(statement, *arguments)
        self.killer.die()
        found = super().execute(statement, *arguments)
        self.killer.die()
        return found

    def executemany(self, *arguments):
        self.killer.die()
        found = super().executemany(*arguments)
        self.killer.die()
        return found


class SqliteSink:
    def __init__(self, place, killer):
        self.path, self._killer = place / "shop ?#%.db", killer

    @property
    def target(self):
        return SqliteTable(self.path, "orders")

    def merge(self, batch, batch_id=None, app_id=None, **options):
        return merge_into_sqlite(batch, batch_id, self.path, "orders", app_id, **options)

    def drop(self):
        with sqlite3.connect(self.path) as database:
            database.execute("DROP TABLE orders")
        database.close()

    def dies(self, dice, chance=0.0):
        self._killer.dice, self._killer.chance = dice, chance


@pytest.fixture
def sink(tmp_path, monkeypatch):
    killer = Killer()
    monkeypatch.setattr(Mortal, "killer", killer)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Mortal))
    return SqliteSink(tmp_path, killer)
