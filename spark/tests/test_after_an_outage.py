"""Measures what each way to continue after an outage leaves wrong, for the page *After an outage*."""

import json
import logging
import tomllib
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

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
from multiclouddb_cli.main import app
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from multiclouddb_verify import DeltaTarget, spark_position, verify
from pyspark_multiclouddb import merge_into_delta, micro_batches
from pyspark_multiclouddb.errors import SourceError

from .micro_batches import MergedQuery
from .tables import documents, notes_of, rows, with_columns
from .test_snapshot_pages import ADDRESS, Pages

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
        """Delete, update and create this number of documents each."""
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
        with pytest.raises(
            SourceError, match=r"CHECKPOINT_EXPIRED.*failOnDataLoss=resnapshot.*after-an-outage"
        ):
            self.read_through(query)
        return query


@pytest.fixture
def outage(source, tmp_path, monkeypatch):
    # Nobody waits until a slow transaction of the store must have ended.
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    return Outage(source, tmp_path)


def pages_resnapshot(outage, times=1):
    with outage.pages(on_expired=Resnapshot()) as pages:
        pages.drain()
        for _ in range(times):
            outage.lose()
            pages.drain()


def pages_resnapshot_twice(outage):
    pages_resnapshot(outage, 2)


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


def spark_same_app_id(outage):
    outage.refused()
    before = outage.measured()
    second = outage.query("second", startingPosition="beginning")
    second.app_id = "first"
    with pytest.raises(MulticloudDbError, match=r"app_id: is 'first'.*after-an-outage") as caught:
        second.drain()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert outage.measured() == before


def another(outage, **options):
    outage.refused()
    outage.query("second", **options).drain()


def healed(outage, position):
    """Prove and repair the table beside the consumer, by the position that it has stored."""
    with connect(f"embedded://{outage.source.store.path}") as client:
        report = verify(
            client, ADDRESS, DeltaTarget(outage.table), position=position(client), repair=True,
            state=outage.folder / "state",
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
    ran = CliRunner().invoke(app, [*words, "--state", str(outage.folder / "state")])
    assert (ran.exit_code, json.loads(ran.stdout)["counts"]["repaired"]) == (0, 3 * COUNT)


WAYS = {
    "pages_resnapshot": pages_resnapshot,
    "pages_resnapshot_twice": pages_resnapshot_twice,
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
    "spark_same_app_id": spark_same_app_id,
}
ROWS = {f"{kind}_{row['id']}": row for kind in ("pages", "spark") for row in PAGE[kind]}


@pytest.mark.parametrize("way", ROWS)
def test_page_says_what_is_measured(outage, way):
    WAYS[way](outage)
    if not ROWS[way].get("refused"):
        told = {name: ROWS[way][name] for name in ("ghosts", "missing", "stale")}
        assert outage.measured() == told, "correct docs/outage.toml, and run: python docs/generate.py"


class TestWarning:
    """A way that leaves the table wrong says so, and names the way that repairs it."""

    @pytest.fixture(autouse=True)
    def logged(self, caplog):
        self.caplog = caplog
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            yield

    def said(self):
        found = (each for each in self.caplog.records if each.name == "multiclouddb.spark")
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
        assert (query.log[-1]["lost"], query.log[-1]["warning"]) == (True, warning)
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
        query.restart().drain()
        assert query.log[-1]["lost"] is True
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
        assert "app_id 'second' is new" in said
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
        with patch.object(micro_batches, "check_kept", side_effect=unreadable) as asked:
            query.drain()
        assert asked.called
        assert not any(outage.measured().values())
