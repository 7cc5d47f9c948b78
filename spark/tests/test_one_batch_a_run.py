"""Repeats runs of one micro-batch until nothing more follows, and compares the rows with the collection.

Spark runs one micro-batch with the trigger `once`, and with `availableNow` if a source of the query does not
support it: another source of a union, or this one before Spark 4.2.
"""

from types import SimpleNamespace

import pytest

from pyspark_multiclouddb import caught_up

from .micro_batches import Query, ids


class Runs:
    """Runs of one micro-batch each, whose limits Spark does not apply."""

    def __init__(self, source, *, is_plain, **options):
        self._query = Query(source, is_plain=is_plain, **options)

    def run(self):
        """Return the rows of a run, and whether it has read everything."""
        query = self._query.restart()
        before = query.log[-1] if query.log else None
        rows = query.step(None if query.is_plain else "all")
        ends = [] if rows is None else [{"startOffset": str(before), "endOffset": str(query.log[-1])}]
        return rows or [], caught_up(SimpleNamespace(lastProgress={"sources": ends} if ends else None))

    def all(self):
        """Return the rows of all runs until one has read everything."""
        found, is_done = [], False
        while not is_done:
            rows, is_done = self.run()
            found += rows
        return found


KINDS = pytest.mark.parametrize("is_plain", [True, False])


@KINDS
@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "20"}])
def test_changes(source, is_plain, limit):
    source.write(50)
    source.split()
    source.write(20)
    runs = Runs(source, is_plain=is_plain, **limit)
    found = ids(runs.all())
    assert len(set(found)) == len(found) == len(source.truth)
    assert runs.run() == ([], True)


@KINDS
def test_rows_of_a_snapshot(source, is_plain):
    source.fill(30)
    found = Runs(source, is_plain=is_plain, startingPosition="snapshot").all()
    assert {row["key"] for row in found} == {f'{{"id":"k{number}"}}' for number in range(30)}


@KINDS
def test_rows_of_a_snapshot_that_repairs_a_loss(source, is_plain):
    source.write(20)
    runs = Runs(source, is_plain=is_plain, failOnDataLoss="resnapshot")
    runs.all()
    source.lose()
    found = {row["key"] for row in runs.all() if row["backfilled"]}
    assert found == {f'{{"id":"{key}"}}' for key in source.documents}


def test_a_run_that_spark_repeats_is_not_asked(source):
    source.write(50)
    query = Query(source, maxRecordsPerTrigger="20")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.drain()) == len(source.truth)
    assert not any("more" in offset for offset in query.log)
