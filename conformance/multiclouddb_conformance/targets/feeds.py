"""Tests that a table belongs to one feed, and that each step writes only into the table it looked at."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from typing import Any, Final

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    Dropped,
    ErrorCategory,
    ErrorReason,
    Invalidated,
    MulticloudDbError,
    Notice,
    Renamed,
    ResourceAddress,
    SnapshotStarted,
)
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    NOW,
    PLAN,
    SOURCE,
    SinkHarness,
    bare,
    documents,
    events,
    expected,
    key_of,
    page,
    refused,
    rows,
    token_of,
)
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.partition import incarnation_digest
from multiclouddb_tables.contract import Fix, SupportsRecord
from multiclouddb_tables.mark import FeedSource
from multiclouddb_tables.merging import MergeRules

__all__ = ["TestEmptied", "TestMarked", "TestReplaced"]

OTHERS: Final = (
    FeedSource("provider", ResourceAddress("main", "customers"), "first"),
    FeedSource("provider", ResourceAddress("test", "orders"), "first"),
    FeedSource("vendor", ADDRESS, "first"),
)
"""Feeds that the table of a sink does not belong to."""
NOTICES: Final = (
    (Dropped("main/y"), False),
    (Renamed("main/y", "main/z"), False),
    (Dropped("other"), False),
    (Dropped("main/x"), True),
    (Dropped("main"), True),
    (Renamed("main/x", "main/z"), True),
    (Renamed("main/z", "main/x"), True),
    (Invalidated("it was dropped"), True),
)
"""Notices, and whether each says that the rows of `main/x` are those of a collection that is gone."""


def _from(source: FeedSource, batch: pa.Table, address: ResourceAddress | None = None) -> pa.Table:
    """Return a batch as if it came from another feed."""
    address = address or source.address
    where = encode_partition_id(source.provider, source.address, source.incarnation, "p0")
    values = {"partition_id": where, "database": address.database, "collection": address.collection}
    for name, value in values.items():
        at = batch.column_names.index(name)
        batch = batch.set_column(at, name, pa.array([value] * batch.num_rows, pa.string()))
    return batch


def _without(batch: pa.Table, name: str) -> pa.Table:
    """Return a batch whose column has no value."""
    at = batch.column_names.index(name)
    return batch.set_column(at, batch.schema.field(at), pa.nulls(batch.num_rows, pa.string()))


class TestMarked:
    """Tests that a table belongs to one feed, and that nothing of another one is merged into it."""

    def test_the_mark_names_the_feed_and_the_columns_of_the_sink(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        mark = sink.target.found().mark
        assert mark is not None
        assert (mark.source, mark.incomplete_since) == (SOURCE, None)
        ours = {"key", "order_key", "timestamp", "new_item_state", "_deleted_at"}
        assert set(mark.columns) == ours
        sink.merge(rows(("b", 1, {"n": 1})).append_column("total", pa.array([1.5])), new_columns="add")
        mark = sink.target.found().mark
        assert mark is not None
        assert set(mark.columns) == {*ours, "total"}
        sink.merge(bare(("c", 1, {})), missing_state="keep")
        mark = sink.target.found().mark
        assert mark is not None
        assert set(mark.columns) == {*ours, "total", "_stale_since"}

    @pytest.mark.parametrize("other", OTHERS)
    def test_a_batch_of_another_feed_is_refused(self, sink: SinkHarness, other: FeedSource) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        message = refused(
            sink.merge, _from(other, rows(("a", 2, {"n": 2}))), reason=ErrorReason.WRONG_RESOURCE
        ).message
        assert str(other) in message
        assert "orders" in message
        assert documents(sink) == {"a": {"n": 1}}
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == SOURCE
        sink.merge(rows(("a", 3, {"n": 3})))
        assert documents(sink) == {"a": {"n": 3}}

    def test_a_batch_with_rows_of_two_feeds_is_refused(self, sink: SinkHarness) -> None:
        both = pa.concat_tables([rows(("a", 1, {})), _from(OTHERS[0], rows(("b", 1, {})))])
        assert "several feeds" in refused(sink.merge, both).message

    def test_a_batch_that_names_no_feed_needs_source(self, sink: SinkHarness) -> None:
        batch = rows(("a", 1, {"n": 1}))
        for name in ("partition_id", "database", "collection"):
            less = batch.drop_columns([name]) if name != "database" else _without(batch, "partition_id")
            assert "source=" in refused(sink.merge, less).message
        assert sink.merge(batch.drop_columns(["partition_id"]), source="provider:main/orders")
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == FeedSource("provider", ADDRESS)
        less = rows(("a", 2, {})).drop_columns(["database"])
        assert "customers" in refused(sink.merge, less, source="provider:main/customers").message
        assert (
            "customers"
            in refused(
                sink.merge, batch, source="provider:main/customers", reason=ErrorReason.WRONG_RESOURCE
            ).message
        )
        assert "names no feed" in refused(sink.merge, less, source="orders").message
        sink.merge(rows(("a", 3, {"n": 3})))
        assert documents(sink) == {"a": {"n": 3}}

    def test_a_feed_of_a_database_fills_a_table_from_one_collection(self, sink: SinkHarness) -> None:
        """Two collections may have documents of one key."""
        shop = FeedSource("provider", ResourceAddress("main", None))
        first, second = (
            _from(shop, rows(("a", number, {"n": number})), ResourceAddress("main", name))
            for number, name in ((1, "x"), (2, "y"))
        )
        assert "several collections" in refused(sink.merge, pa.concat_tables([first, second])).message
        sink.merge(first)
        message = refused(sink.merge, second).message
        assert "main/x" in message
        assert "main/y" in message
        sink.merge(first)
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == attrs.evolve(shop, collection=ResourceAddress("main", "x"))
        refused(sink.merge, rows(("a", 2, {})))
        assert documents(sink) == {"a": {"n": 1}}

    @pytest.mark.parametrize(("notice", "is_ours"), NOTICES)
    @pytest.mark.parametrize("has_rows", [True, False])
    def test_a_notice_of_another_collection_changes_nothing_in_the_table(
        self, sink: SinkHarness, notice: Notice, *, is_ours: bool, has_rows: bool
    ) -> None:
        shop, address = FeedSource("provider", ResourceAddress("main", None)), ResourceAddress("main", "x")
        where = encode_partition_id(shop.provider, shop.address, None, "p0")
        first, second = (
            [attrs.evolve(each, address=address, partition_id=where) for each in events(("a", n, {"n": n}))]
            for n in (1, 2)
        )
        sink.merge(page(first, token=token_of(shop, None)))
        batch = page(second if has_rows else [], notice, token=token_of(shop, None))
        if is_ours:
            assert "Snapshot()" in refused(sink.merge, batch).message
        else:
            sink.merge(batch)
        assert documents(sink) == {"a": {"n": 2 if has_rows and not is_ours else 1}}

    def test_a_table_that_may_be_mixed_already_is_refused(
        self, sink: SinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its mark is that of an earlier version, which took rows of every collection."""
        shop = FeedSource("provider", ResourceAddress("main", None))
        batch = _from(shop, rows(("a", 1, {"n": 1})), ResourceAddress("main", "x"))
        with monkeypatch.context() as patch:
            patch.setattr(FeedSource, "of_row", lambda *_: shop)
            sink.merge(batch)
        message = refused(sink.merge, batch).message
        assert "may have replaced each other" in message
        assert "from a snapshot" in message

    def test_a_snapshot_of_a_collection_that_was_made_again_takes_the_table_over(
        self, sink: SinkHarness
    ) -> None:
        sink.merge(page(events(("a", 5, {"n": 1}), ("b", 6, {"n": 1}))))
        token = token_of(FeedSource("provider", ADDRESS), "second")
        later = page(events(("a", 1, {"n": 2}), incarnation="second"), token=token)
        assert "created again" in refused(sink.merge, later, reason=ErrorReason.RECREATED).message
        plan = encode_partition_id("provider", ADDRESS, "second", "snapshot:t")
        scanned = events(
            ("c", 0, {"n": 3}), mark="snapshot:t:", backfilled=True, floor="000002~", incarnation="second"
        )
        sink.merge(page([], SnapshotStarted("000002~", plan), token=token))
        sink.merge(page(scanned, BackfillDone(plan, "000002~"), token=token))
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.incarnation not in (None, SOURCE.incarnation)
        assert documents(sink) == {"c": {"n": 3}}
        assert (
            "created again" in refused(sink.merge, rows(("a", 9, {})), reason=ErrorReason.RECREATED).message
        )

    def test_a_table_that_was_dropped_has_no_mark(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {})))
        sink.drop()
        with pytest.raises(MulticloudDbError) as caught:
            sink.target.found()
        check_refusal(caught.value, ErrorCategory.NOT_FOUND)


class TestEmptied:
    """Tests a table whose rows somebody has removed, for example with TRUNCATE."""

    def test_the_next_changes_are_refused_until_a_snapshot_begins(self, sink: SinkHarness) -> None:
        first = page(events(("a", 1, {"n": 1}), ("b", 1, None)))
        sink.merge(first)
        fixes = [Fix(key_of(name), ("000001",), "", None, None, NOW, removes=True) for name in ("a", "b")]
        assert sink.target.fix(fixes, expected(sink)) == 2

        def following(number: int, *notices: Notice) -> ChangeFeedPage:
            found = [] if notices else events(("a", number, {"n": number}))
            return attrs.evolve(page(found, *notices), resumed_from=first.continuation_token)

        for each in (following(2), following(3)):
            assert "is empty" in refused(sink.merge, each, reason=ErrorReason.ROWS_MISSING).message
        assert documents(sink) == {}
        # The collection may be empty by now.
        sink.merge(following(4, SnapshotStarted("000010~", PLAN)))
        sink.merge(following(4, BackfillDone(PLAN, "000010~")))
        assert documents(sink) == {}
        sink.merge(following(11))
        sink.merge(following(12))
        assert documents(sink) == {"a": {"n": 12}}

    def test_a_table_that_never_had_a_row_is_not_emptied(self, sink: SinkHarness) -> None:
        sink.merge(rows(), 0, "app")
        assert documents(sink) == {}
        sink.merge(rows(("a", 1, {"n": 1})), 1, "app")
        assert documents(sink) == {"a": {"n": 1}}


class TestReplaced:
    """Tests that the step that writes looks at what is there, and not an earlier step."""

    def _made_again(self, sink: SinkHarness) -> None:
        """Drop the table, and fill another one of its name from the same feed."""
        sink.drop()
        sink.merge(page([], SnapshotStarted("000000~", PLAN)))
        scanned = events(("a", 0, {"n": 9}), mark="snapshot:s:", backfilled=True, floor="000001")
        sink.merge(page(scanned, BackfillDone(PLAN, "000000~")))

    def test_what_was_compared_before_is_not_written_into_another_table_of_the_feed(
        self, sink: SinkHarness
    ) -> None:
        sink.merge(rows(("a", 1, {"n": 1}), ("b", 1, {"n": 1})))
        before = expected(sink)
        assert sink.target.found(before.found).is_same(before.found)
        self._made_again(sink)
        fixes = [
            Fix(key_of("a"), ("000001",), "000001", '{"n":1}', None, NOW),
            Fix(key_of("b"), (), "000001", '{"n":1}', None, NOW),
        ]
        assert "another table" in refused(sink.target.fix, fixes, before).message
        assert "another table" in refused(sink.target.complete, before).message
        if isinstance(sink.target, SupportsRecord):
            assert "another table" in refused(sink.target.record, {"a": "b"}, before).message
        assert documents(sink) == {"a": {"n": 9}}

    def test_the_table_of_another_feed_is_not_written(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        before = attrs.evolve(expected(sink), source=OTHERS[0])
        fixes = [Fix(key_of("a"), ("000001",), "000001", '{"n":2}', None, NOW)]
        assert "is the table of" in refused(sink.target.fix, fixes, before).message
        assert documents(sink) == {"a": {"n": 1}}

    def test_of_two_feeds_that_make_the_table_at_the_same_time_one_fills_it(
        self, sink: SinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other one is merged after this one has found no table."""
        marked, theirs = MergeRules._marked, [_from(OTHERS[0], rows(("b", 1, {"n": 2})))]

        def after_another(table: MergeRules, stored: Any, *arguments: Any) -> Any:
            found = marked(table, stored, *arguments)
            if theirs:
                sink.merge(theirs.pop())
            return found

        monkeypatch.setattr(MergeRules, "_marked", after_another)
        with pytest.raises(MulticloudDbError):
            sink.merge(rows(("a", 1, {"n": 1})))
        assert not theirs
        assert documents(sink) == {"b": {"n": 2}}
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source.address == OTHERS[0].address

    def test_a_mark_learns_the_incarnation_from_the_first_batch_that_names_it(
        self, sink: SinkHarness
    ) -> None:
        less = rows(("a", 1, {"n": 1})).drop_columns(["partition_id"])
        sink.merge(less, source="provider:main/orders")
        sink.merge(rows(("b", 2, {"n": 2})))
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == SOURCE
        again = _from(attrs.evolve(SOURCE, incarnation=incarnation_digest("second")), rows(("a", 3, {})))
        assert "created again" in refused(sink.merge, again, reason=ErrorReason.RECREATED).message
        sink.merge(less, source="provider:main/orders")
        assert sink.target.found().mark == mark
