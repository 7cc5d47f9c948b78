"""Measures what each way to continue after an outage leaves wrong, for the page *After an outage*."""

import json
import logging
import os
import random
import tomllib
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    FeedEnded,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    PhysicalPartition,
    Resnapshot,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
    connect,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_cli.main import app
from multiclouddb_conformance.sink_harness import Death
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi import Planner
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from multiclouddb_verify import DeltaTarget, spark_position, verify
from pyspark_multiclouddb import merge_into_delta
from pyspark_multiclouddb.errors import SourceError
from testing.seeds import seeds

from .conftest import COLLECTION
from .micro_batches import (
    MergedQuery,
    check_equal,
    documents,
    make_checkpoint,
    notes_of,
    rows,
    with_columns,
)

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "1"))
ORDERS = list(SnapshotOrder)
# Each seed has one order.
LIVED = [
    pytest.param(*each.values, ORDERS[each.values[0] % 3], marks=each.marks) for each in seeds(LIVES, 50)
]
ADDRESS = ResourceAddress(collection=COLLECTION)


class Pages:
    """A loop over pages that merges each page and then stores its token."""

    def __init__(self, source, table, start=None, **settings):
        self.source, self.table, self.settings = source, table, settings
        self.start, self.token = start or Snapshot(), None

    def __enter__(self):
        self.client = connect(f"embedded://{self.source.store.path}")
        return self

    def __exit__(self, *_):
        self.client.close()

    def page(self):
        position = self.start if self.token is None else FromContinuationToken(self.token)
        return self.client.read_changes(ChangeFeedRequest(ADDRESS, position, **self.settings))

    def step(self):
        page = self.page()
        merge_into_delta(page, None, self.table, None)
        self.token = page.continuation_token
        return page

    def drain(self):
        idle = 0
        while idle < 2:
            idle = idle + 1 if self.step().idle else 0


def follow(source, table, start=None, **settings):
    with Pages(source, table, start, **settings) as pages:
        pages.drain()


def ended(page):
    return any(isinstance(each, BackfillDone | FeedEnded) for each in page.notices)


def pages_of(source):
    found = []
    with Pages(source, None) as pages:
        while not found or not ended(found[-1]):
            found.append(page := pages.page())
            pages.token = page.continuation_token
    return found


class TestRepairs:
    def test_collection_that_was_created_again(self, source, path):
        source.write(40)
        with Pages(source, path) as pages:
            pages.drain()
            source.store.create_collection(COLLECTION, partitions=2, recreate=True)
            source.documents.clear()
            source.write(20, seed="again")
            with pytest.raises(MulticloudDbError, match=r"Snapshot\(\)"):
                pages.step()
            pages.token = None
            pages.drain()
        check_equal(path, source)

    @pytest.mark.parametrize(("seed", "order"), LIVED)
    def test_equal_after_kills_lost_tokens_and_outages(self, source, path, kills, seed, order):
        dice = random.Random(f"{seed} {order}")
        source.write(80, seed=seed)
        wanted = Snapshot(order, segments=dice.choice([1, 5]))
        settings = {"on_expired": Resnapshot(wanted), "max_page_size": dice.choice([0, 7])}
        with Pages(source, path, wanted, **settings) as pages:
            deaths = 0
            for moment in range(50):
                kills(dice=dice, chance=dice.choice([0.0, 0.2]))
                stored = pages.token
                try:
                    pages.step()
                except Death:
                    deaths += 1
                if dice.random() < 0.15:
                    pages.token = stored
                source.write(dice.choice([0, 1, 3]), seed=f"{seed} {moment}")
                if moment in (15, 30):
                    source.delete_some(3)
                    source.lose()
                if moment == 40:
                    pages.token = None
            kills(dice=None)
            pages.drain()
        assert deaths or seed
        check_equal(path, source)


class TestMarks:
    @pytest.fixture
    def filled(self, source, path):
        source.write(20)
        follow(source, path)
        return source

    def test_notices_name_the_same_snapshot_and_the_first_page_makes_the_table(self, source, path):
        source.write(10)
        with Pages(source, path) as pages:
            [started] = pages.step().notices
            assert isinstance(started, SnapshotStarted)
            assert started.whole
            assert DeltaTable(path).to_pyarrow_dataset().count_rows() == 0
            found = []
            while not found:
                found = [each for each in pages.step().notices if isinstance(each, BackfillDone)]
        assert found == [BackfillDone(started.partition_id, started.floor)]
        with pytest.raises(MulticloudDbError, match="there is no Delta table"):
            merge_into_delta(pages_of(source)[0], None, path.with_name("none"), None, create="never")

    @pytest.mark.parametrize("is_table", [False, True], ids=["page", "table"])
    def test_rows_of_a_snapshot_that_has_not_begun_in_the_table(self, filled, path, is_table):
        """A table of Arrow has no notices; its rows are harmless in a new table, which has no older ones."""
        version, found = DeltaTable(path).version(), [page for page in pages_of(filled) if page.events]
        if is_table:
            found = [pa.Table.from_batches([events_to_arrow(page.events)]) for page in found]
        for each in found:
            with pytest.raises(MulticloudDbError, match=r"batch: .* of which .* has no mark"):
                merge_into_delta(each, None, path, None)
        assert DeltaTable(path).version() == version
        new = path.with_name("new")
        if is_table:
            for each in found:
                merge_into_delta(each, None, new, None)
        else:
            with pytest.raises(MulticloudDbError, match=r"of which .* has no mark"):
                merge_into_delta(found[0], None, new, None)
            follow(filled, new)
        check_equal(new, filled)

    def test_checkpoint_of_a_query_says_nothing_about_pages(self, filled, path, tmp_path):
        given = {"app_id": "app", "checkpoint": make_checkpoint(tmp_path / "query", "query-1", batches=20)}
        for number, page in enumerate(pages_of(filled)[1:]):
            with pytest.raises(MulticloudDbError, match=r"of which .* has no mark"):
                merge_into_delta(page, number, path, **given)
        filled.delete_some()
        for number, page in enumerate(pages_of(filled)):
            merge_into_delta(page, number, path, **given)
        check_equal(path, filled)

    def test_page_with_a_number_that_another_read_has_used(self, source, path):
        source.write(20)
        for number, page in enumerate(pages_of(source)):
            merge_into_delta(page, number, path, "app")
        check_equal(path, source)
        source.delete_some()
        for number, page in enumerate(pages_of(source)):
            merge_into_delta(page, number, path, "app")
        check_equal(path, source)


class TestParts:
    """A snapshot that does not deliver every row must not delete the rows of others."""

    def test_segments_of_a_plan(self, source, path):
        source.write(60)
        planned = ChangeFeedRequest(ADDRESS, Snapshot(SnapshotOrder.INTERLEAVED, segments=4))

        def read(name, token):
            scope = PhysicalPartition(name, with_descendants=True)
            with Pages(source, path, FromContinuationToken(token), scope=scope) as pages:
                page = pages.step()
                while not page.idle and not page.partition_retired and not ended(page):
                    page = pages.step()

        with connect(f"embedded://{source.store.path}") as client:
            for name, token in client.plan_partitions(planned, with_descendants=True):
                read(name, token)
            check_equal(path, source)
            for name, token in client.plan_partitions(planned, with_descendants=True):
                if ":snapshot:" in name:
                    with pytest.raises(MulticloudDbError, match="does not deliver every row"):
                        read(name, token)
        check_equal(path, source)

    def test_one_partition_key(self, source, path):
        source.write(30)
        follow(source, path)
        key = sorted(source.documents)[0]
        scope = LogicalPartition(MulticloudDbKey({"id": key}))
        with pytest.raises(MulticloudDbError, match="does not deliver every row"):
            follow(source, path, scope=scope)
        check_equal(path, source)
        follow(source, path.with_name("one"), scope=scope)
        assert documents(path.with_name("one")) == {key: source.documents[key]}


COUNT = 100
LATER = 10
PAGE = tomllib.loads((Path(__file__).parents[2] / "docs" / "outage.toml").read_text(encoding="utf-8"))


class Outage:
    """A collection that is copied into a table, and changed while the consumer is stopped."""

    def __init__(self, source, folder, count=COUNT * 3):
        self.source, self.folder, self.table, self.number = source, folder, folder / "table", 0
        for _ in range(count):
            self.create()

    def create(self):
        self.number += 1
        self.put(f"d{self.number}")

    def put(self, key):
        self.number += 1
        self.source.put(key, {"n": self.number})

    def change(self, count):
        oldest = [key for key, _ in sorted(self.source.documents.items(), key=lambda item: item[1]["n"])]
        for key in oldest[:count]:
            self.source.delete(key)
        for key in oldest[count : 2 * count]:
            self.put(key)
        for _ in range(count):
            self.create()

    def lose(self):
        """Change documents, and expire these changes; some later changes are still kept."""
        self.change(COUNT)
        self.source.trim()
        self.change(LATER)

    def measured(self):
        found, wanted = documents(self.table), self.source.documents
        return {
            "ghosts": len(found.keys() - wanted.keys()),
            "missing": len(wanted.keys() - found.keys()),
            "stale": sum(found[key] != wanted[key] for key in found.keys() & wanted.keys()),
        }

    def pages(self, start=None, **settings):
        return Pages(self.source, self.table, start, **settings)

    def query(self, name, **options):
        return MergedQuery(self.source, self.folder, name, **options)

    def read_through(self, query, times=1):
        """Let a query read everything, and again after each of several outages."""
        query.drain()
        for _ in range(times):
            self.lose()
            query.restart().drain()

    def refused(self):
        """Let a query meet an outage without an option; it is refused."""
        query = self.query("first")
        way_out = r"CHECKPOINT_EXPIRED.*failOnDataLoss=resnapshot.*after-an-outage"
        with pytest.raises(SourceError, match=way_out):
            self.read_through(query)
        return query


@pytest.fixture
def outage(source, tmp_path, monkeypatch):
    # Nobody waits until a slow transaction of the store must have ended.
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)
    return Outage(source, tmp_path)


def pages_resnapshot(outage, times=1):
    with outage.pages(on_expired=Resnapshot()) as pages:
        pages.drain()
        for _ in range(times):
            outage.lose()
            pages.drain()


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


def pages_read_then_now(outage):
    outage.lose()
    with connect(f"embedded://{outage.source.store.path}") as client:
        copy = rows(*((key, 0, value) for key, value in outage.source.documents.items()))
        keys = [json.dumps({"id": key}, separators=(",", ":")) for key in outage.source.documents]
        merge_into_delta(with_columns(copy, key=keys), None, outage.table, None)
        outage.change(LATER)
        assert client.read_changes(ChangeFeedRequest(ADDRESS, Now())).events == ()


def another(outage, **options):
    outage.refused()
    outage.query("second", **options).drain()


def healed(outage, position):
    """Prove and repair the table beside the consumer, by the position that it has stored."""
    with connect(f"embedded://{outage.source.store.path}") as client:
        report = verify(
            client, ADDRESS, DeltaTarget(outage.table), position=position(client), repair=True,
            state=outage.folder / "state", max_repairs=3 * COUNT,
        )  # fmt: skip
    assert (report.equal, report.counts.repaired) == (True, 3 * COUNT)


def pages_skip_verify(outage):
    with outage.pages(on_expired=SkipToOldest()) as pages:
        pages.drain()
        outage.lose()
        pages.drain()
        healed(outage, lambda client: pages.token)
        outage.change(1)
        pages.drain()


def skipped(outage):
    query = outage.query("first", failOnDataLoss="false")
    outage.read_through(query)
    return query


def spark_skip_verify(outage):
    query = skipped(outage)
    healed(outage, lambda client: spark_position(client, ADDRESS, query.checkpoint))
    outage.change(1)
    query.drain()


def spark_skip_command(outage):
    query = skipped(outage)
    words = ["verify", f"embedded://{outage.source.store.path}", str(ADDRESS), "--repair", "--json"]
    words += ["--target", f"delta:{outage.table}", "--position", f"spark:{query.checkpoint}"]
    words += ["--state", str(outage.folder / "state"), "--max-repairs", str(3 * COUNT)]
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, json.loads(ran.stdout)["counts"]["repaired"]) == (0, 3 * COUNT)


WAYS = {
    "pages_resnapshot": pages_resnapshot,
    "pages_resnapshot_twice": lambda outage: pages_resnapshot(outage, 2),
    "pages_snapshot": lambda outage: again(outage, Snapshot()),
    "pages_skip": lambda outage: again(outage, None, on_expired=SkipToOldest()),
    "pages_skip_verify": pages_skip_verify,
    "pages_beginning": lambda outage: again(outage, Beginning()),
    "pages_now": lambda outage: again(outage, Now()),
    "pages_read_then_now": pages_read_then_now,
    "spark_resnapshot": lambda o: o.read_through(o.query("first", failOnDataLoss="resnapshot"), 3),
    "spark_snapshot": another,
    "spark_skip": lambda outage: outage.read_through(outage.query("first", failOnDataLoss="false")),
    "spark_skip_verify": spark_skip_verify,
    "spark_skip_command": spark_skip_command,
    "spark_beginning": lambda outage: another(outage, startingPosition="beginning"),
}
ROWS = {f"{kind}_{row['id']}": row for kind in ("pages", "spark") for row in PAGE[kind]}


@pytest.mark.parametrize("way", ROWS)
def test_page_says_what_is_measured(outage, way):
    WAYS[way](outage)
    told = {name: ROWS[way][name] for name in ("ghosts", "missing", "stale")}
    assert outage.measured() == told, "correct docs/outage.toml, and run: python docs/generate.py"


class TestWarning:
    """A way that leaves the table wrong says so, and names the way that repairs it."""

    @pytest.fixture(autouse=True)
    def logged(self, caplog):
        self.caplog = caplog
        with caplog.at_level(logging.WARNING, "multiclouddb"):
            yield

    def said(self):
        loggers = ("multiclouddb.spark", "multiclouddb.tables")
        found = (each for each in self.caplog.records if each.name in loggers)
        return [each.getMessage() for each in found]

    def test_skipped_changes_are_named_in_log_offset_and_commit_also_by_the_next_process(self, outage):
        query = outage.query("first", failOnDataLoss="false")
        outage.read_through(query)
        [said] = set(self.said())
        assert "startingPosition=snapshot" in said
        assert AFTER_AN_OUTAGE in said
        warning = query.log[-1]["warning"]
        assert warning in said
        outage.change(1)
        query.restart().drain()
        assert (query.log[-1]["lost"], query.log[-1]["warning"]) == (1, warning)
        assert notes_of(outage.table, "warning")[-2:] == [warning] * 2

    @pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "not planned"])
    def test_loss_that_only_the_tasks_meet(self, source, tmp_path, is_planned):
        """The next process reads a batch that was planned before its changes expired."""
        outage = Outage(source, tmp_path, 5)
        query = outage.query("first", failOnDataLoss="false")
        query.drain()
        outage.change(2)
        if is_planned:
            assert query.plan()
        source.trim()
        outage.change(2)
        assert len(query.restart().drain()) == 6
        assert query.log[-1]["lost"] == 1
        assert AFTER_AN_OUTAGE in self.caplog.text

    def test_first_offset_of_a_query_that_does_not_begin_with_a_snapshot(self, outage):
        query = outage.query("first", startingPosition="beginning")
        query.drain()
        assert AFTER_AN_OUTAGE in query.log[0]["warning"]
        outage.change(1)
        query.drain()
        assert "warning" not in query.log[-1]
        snapshot = outage.query("second")
        snapshot.drain()
        assert "warning" not in snapshot.log[0]

    def test_new_query_on_a_table_with_rows(self, outage):
        another(outage, startingPosition="beginning")
        outage.change(1)
        outage.query("third").drain()
        [said] = self.said()
        assert "the query 'second' is new" in said
        assert AFTER_AN_OUTAGE in said
        assert said in notes_of(outage.table, "warning")

    def test_nothing_is_said_about_a_healthy_query(self, outage):
        query = outage.query("first", startingPosition="beginning")
        for _ in range(3):
            query.drain()
            outage.change(2)
            query.restart()
        with outage.pages() as pages:
            for _ in range(3):
                merge_into_delta(pages.page(), None, outage.table, None)
        assert self.said() == []
        assert notes_of(outage.table, "warning") == []

    def test_search_for_a_loss_does_not_stop_at_a_change_that_cannot_be_decoded(self, outage):
        """The tasks leave such a change out with `onPoison=skip`, or name it."""
        query = outage.query("first", failOnDataLoss="false", onPoison="skip")
        query.drain()
        outage.change(1)
        assert query.plan()
        query.restart()
        unreadable = MulticloudDbError("unreadable", ErrorDetail(ErrorCategory.PROVIDER_ERROR))
        with patch.object(Planner, "check_kept", side_effect=unreadable) as asked:
            query.drain()
        assert asked.called
        assert not any(outage.measured().values())
