"""Runs the contract of a table on a table in memory."""

from functools import partial

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import Death, documents, rows
from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_conformance.targets.declared import *  # noqa: F403
from multiclouddb_tables import Columns

from .memory_table import Database, MemoryTable, merge_into_memory


class MemorySink:
    def __init__(self):
        self.database = Database(self._die)
        self.dice, self.chance = None, 0.0

    @property
    def target(self):
        return MemoryTable(self.database, "orders")

    def merge(self, batch, batch_id=None, app_id=None, **options):
        return merge_into_memory(batch, batch_id, self.database, "orders", app_id, **options)

    def drop(self):
        del self.database.tables["orders"]

    def dies(self, dice, chance=0.0):
        self.dice, self.chance = dice, chance

    def _die(self):
        if self.dice is not None and self.dice.random() < self.chance:
            self.dice = None
            raise Death


@pytest.fixture
def sink():
    return MemorySink()


def test_a_table_that_keeps_no_marks_takes_no_declaration(sink, monkeypatch):
    columns = Columns({"n": "int64"})
    monkeypatch.setattr(MemoryTable, "keeps_marks", False)
    sink.merge(rows(("a", 1, {"n": 1})))
    error = refusal(
        ErrorCategory.UNSUPPORTED_CAPABILITY, partial(sink.merge, rows(("a", 2, {"n": 2})), columns=columns)
    )
    assert "stores no properties" in error.message
    assert documents(sink) == {"a": {"n": 1}}
