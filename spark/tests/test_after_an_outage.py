"""Measures what each way to continue after an outage leaves wrong, for the page *After an outage*."""

import json
import logging
import tomllib
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbError,
    Now,
    Resnapshot,
    SkipToOldest,
    Snapshot,
    connect,
)
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from pyspark_multiclouddb import merge_into_delta, micro_batches
from pyspark_multiclouddb.errors import SourceError

from .conftest import COLLECTION, Source
from .test_sinks import documents, rows
from .test_snapshot_pages import ADDRESS, Pages
from .test_snapshot_sink import Killed, Query

COUNT = 100
LATER = 10
PAGE = tomllib.loads((Path(__file__).parents[2] / "docs" / "outage.toml").read_text(encoding="utf-8"))


class Outage:
    """A collection that is copied into a table, and changed while the consumer is stopped."""

    def __init__(self, source, folder, count=COUNT * 3):
        self.source, self.store, self.folder, self.table = source, source.store, folder, folder / "table"
        self.documents = {}
        self.number = 0
        for _ in range(count):
            self.create()

    def create(self):
        self.number += 1
        self.put(f"d{self.number}")

    def put(self, key):
        self.number += 1
        self.documents[key] = {"n": self.number}
        self.store.put(COLLECTION, key, self.documents[key])

    def change(self, count):
        """Delete, update and create this number of documents each."""
        oldest = [key for key, _ in sorted(self.documents.items(), key=lambda item: item[1]["n"])]
        for key in oldest[:count]:
            self.store.delete(COLLECTION, key)
            del self.documents[key]
        for key in oldest[count : 2 * count]:
            self.put(key)
        for _ in range(count):
            self.create()

    def lose(self):
        """Change documents, and expire these changes; some later changes are still kept."""
        self.change(COUNT)
        self.store.trim(COLLECTION, max_count=0)
        self.change(LATER)

    def measured(self, table=None):
        found = documents(table or self.table)
        both = found.keys() & self.documents.keys()
        return {
            "ghosts": len(found.keys() - self.documents.keys()),
            "missing": len(self.documents.keys() - found.keys()),
            "stale": sum(found[key] != self.documents[key] for key in both),
        }

    def pages(self, start=None, **settings):
        return Pages(self.source, self.table, start, **settings)

    def query(self, name, **options):
        return Query(self.source, self.folder, name, **options)


@pytest.fixture
def outage(source, tmp_path):
    return Outage(source, tmp_path)


def pages_resnapshot(outage, times=1):
    with outage.pages(on_expired=Resnapshot()) as pages:
        pages.drain()
        for _ in range(times):
            outage.lose()
            pages.drain()
    return outage.measured()


def pages_resnapshot_twice(outage):
    return pages_resnapshot(outage, 2)


def again(outage, start, **settings):
    """Continue with a token, or with a start if there is one."""
    with outage.pages() as pages:
        pages.drain()
        outage.lose()
        with pytest.raises(MulticloudDbError, match="after-an-outage") as caught:
            pages.drain()
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED
        said = caught.value.message
        assert said.index("Resnapshot()") < said.index("SkipToOldest()")
        pages.settings = settings
        if start is not None:
            pages.start, pages.token = start, None
        pages.drain()
        outage.change(1)
        pages.drain()
    return outage.measured()


def pages_snapshot(outage):
    return again(outage, Snapshot())


def pages_skip(outage):
    return again(outage, None, on_expired=SkipToOldest())


def pages_beginning(outage):
    return again(outage, Beginning())


def pages_now(outage):
    return again(outage, Now())


def pages_read_then_now(outage):
    outage.lose()
    with connect(f"embedded://{outage.store.path}") as client:
        copy = rows(*((key, 0, value) for key, value in outage.documents.items()))
        keys = pa.array([json.dumps({"id": key}, separators=(",", ":")) for key in outage.documents])
        merge_into_delta(
            copy.set_column(copy.column_names.index("key"), "key", keys), None, outage.table, None
        )
        outage.change(LATER)
        assert client.read_changes(ChangeFeedRequest(ADDRESS, Now())).events == ()
    return outage.measured()


def spark_resnapshot(outage):
    query = outage.query("first", failOnDataLoss="resnapshot")
    for _ in range(3):
        query.drain()
        outage.lose()
        query.restart()
    query.drain()
    return outage.measured()


def first_query(outage):
    query = outage.query("first")
    query.drain()
    outage.lose()
    query.restart()
    with pytest.raises(SourceError, match=r"CHECKPOINT_EXPIRED.*failOnDataLoss=resnapshot.*after-an-outage"):
        query.drain()
    return query


def spark_snapshot(outage):
    first_query(outage)
    outage.query("second").drain()
    return outage.measured()


def spark_skip(outage):
    query = outage.query("first", failOnDataLoss="false")
    query.drain()
    outage.lose()
    query.restart()
    query.drain()
    return outage.measured()


def spark_beginning(outage):
    first_query(outage)
    outage.query("second", startingPosition="beginning").drain()
    return outage.measured()


def spark_same_app_id(outage):
    first = first_query(outage)
    before = outage.measured()
    second = outage.query("second", startingPosition="beginning")
    second.name = first.name
    with pytest.raises(MulticloudDbError, match=r"app_id: is 'first'.*after-an-outage") as caught:
        second.drain()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert outage.measured() == before
    return


WAYS = [(kind, row) for kind in ("pages", "spark") for row in PAGE[kind]]


@pytest.mark.parametrize(("kind", "row"), WAYS, ids=[f"{kind}_{row['id']}" for kind, row in WAYS])
def test_page_says_what_is_measured(outage, kind, row):
    found = globals()[f"{kind}_{row['id']}"](outage)
    told = None if row.get("refused") else {name: row[name] for name in ("ghosts", "missing", "stale")}
    assert found == told, "correct docs/outage.toml, and run: python docs/generate.py"


class TestWarning:
    """A way that leaves the table wrong says so, and names the way that repairs it."""

    def test_skipped_changes_are_named_in_log_offset_and_commit(self, outage, caplog):
        query = outage.query("first", failOnDataLoss="false")
        query.drain()
        outage.lose()
        query.restart()
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            query.drain()
            outage.change(1)
            query.drain()
        [said] = {each.getMessage() for each in caplog.records if each.name == "multiclouddb.spark"}
        assert "startingPosition=snapshot" in said
        assert AFTER_AN_OUTAGE in said
        last = query.offset(query.numbers("offsets")[-1])
        assert last["lost"] is True
        assert last["warning"] in said
        commits = DeltaTable(query.table).history(2)
        assert [each.get("multiclouddb.warning") for each in commits] == [last["warning"]] * 2

    def test_warning_outlives_the_process(self, outage):
        query = outage.query("first", failOnDataLoss="false")
        query.drain()
        outage.lose()
        query.restart()
        query.drain()
        before = query.offset(query.numbers("offsets")[-1])["warning"]
        query.restart()
        outage.change(1)
        query.drain()
        assert query.offset(query.numbers("offsets")[-1])["warning"] == before

    @pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "not planned"])
    def test_loss_that_only_the_tasks_meet(self, tmp_path, caplog, is_planned):
        """The next process reads a batch that was planned before its changes expired."""
        with EmbeddedStore(tmp_path / "kept.db", durable=False) as store:
            source = Source(store)
            outage = Outage(source, tmp_path, 5)
            query = outage.query("first", failOnDataLoss="false")
            query.drain()
            outage.change(2)
            if is_planned:
                with patch.object(query, "run", side_effect=Killed), pytest.raises(Killed):
                    query.step()
            store.trim(COLLECTION, max_count=0)
            outage.change(2)
            query.restart()
            with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
                query.drain()
            assert query.offset(query.numbers("offsets")[-1])["lost"] is True
        assert AFTER_AN_OUTAGE in caplog.text

    def test_first_offset_of_a_query_that_does_not_begin_with_a_snapshot(self, outage):
        query = outage.query("first", startingPosition="beginning")
        query.drain()
        assert AFTER_AN_OUTAGE in query.offset(0)["warning"]
        outage.change(1)
        query.drain()
        assert "warning" not in query.offset(query.numbers("offsets")[-1])
        snapshot = outage.query("second")
        snapshot.drain()
        assert "warning" not in snapshot.offset(0)

    def test_new_query_on_a_table_with_rows(self, outage, caplog):
        first_query(outage)
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            outage.query("second", startingPosition="beginning").drain()
            outage.change(1)
            outage.query("third").drain()
        [said] = [each.getMessage() for each in caplog.records if each.name == "multiclouddb.spark"]
        assert "app_id 'second' is new" in said
        assert AFTER_AN_OUTAGE in said
        commits = [each.get("multiclouddb.warning") for each in DeltaTable(outage.table).history()]
        assert said in commits

    def test_nothing_is_said_about_a_healthy_query(self, outage, caplog):
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            query = outage.query("first", startingPosition="beginning")
            for _ in range(3):
                query.drain()
                outage.change(2)
                query.restart()
            with outage.pages() as pages:
                for _ in range(3):
                    merge_into_delta(pages.page(), None, outage.table, None)
        assert [each for each in caplog.records if each.name == "multiclouddb.spark"] == []
        assert not any("multiclouddb.warning" in each for each in DeltaTable(outage.table).history())

    def test_search_for_a_loss_does_not_stop_at_a_change_that_cannot_be_decoded(self, outage):
        """The tasks leave such a change out with `onPoison=skip`, or name it."""
        query = outage.query("first", failOnDataLoss="false", onPoison="skip")
        query.drain()
        outage.change(1)
        with patch.object(query, "run", side_effect=Killed), pytest.raises(Killed):
            query.step()
        query.restart()
        unreadable = MulticloudDbError("unreadable", ErrorDetail(ErrorCategory.PROVIDER_ERROR))
        with patch.object(micro_batches, "check_kept", side_effect=unreadable) as asked:
            query.drain()
        assert asked.called
        assert not any(outage.measured().values())
