"""Tests each check on delivered events with the smallest feed that violates it."""

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import attrs
import pytest

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    MulticloudDbKey,
    OperationDiagnostics,
    ResourceAddress,
)
from multiclouddb_conformance.model import (
    check_complete,
    check_identity,
    check_key_order,
    check_known,
    check_lineage,
    check_order,
    check_watermarks,
    count_duplicates,
    first_deliveries,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(number, partition="p0", key="a"):
    """Return the event for the change with the given number."""
    return ChangeEvent(
        event_id=f"e{number}",
        key=MulticloudDbKey({"id": key}),
        type=ChangeType.UPDATE,
        timestamp=NOON + timedelta(seconds=number),
        new_item_state={"n": number},
        old_item_state=None,
        order_key=f"{number:04d}",
        by_expiry=None,
        backfilled=False,
        address=ResourceAddress("db", "c"),
        partition_id=partition,
    )


def events(*numbers, **fields):
    return [event(number, **fields) for number in numbers]


def page(*numbers, watermark=None):
    mark = None if watermark is None else NOON + timedelta(seconds=watermark)
    return ChangeFeedPage(tuple(events(*numbers)), "token", diagnostics=OperationDiagnostics(watermark=mark))


TRUTH = [f"e{number}" for number in range(1, 6)]


class TestComplete:
    def test_every_change_came(self):
        assert check_complete(TRUTH, events(5, 4, 3, 2, 1)) == []

    def test_what_did_not_come_is_named(self):
        assert check_complete(TRUTH, events(1, 2, 2, 4)) == ["lost: e3", "lost: e5"]

    def test_what_nobody_wrote_is_named(self):
        (found,) = check_known(TRUTH, events(1, 9, 9))
        assert "e9" in found

    def test_redelivery_is_counted(self):
        delivered = events(1, 2, 1, 3, 2, 1)
        assert count_duplicates(delivered) == 3
        assert first_deliveries(delivered) == events(1, 2, 3)


class TestOrder:
    def test_redelivery_may_go_back(self):
        assert check_order(TRUTH, events(1, 2, 3, 2, 3, 4)) == []

    def test_the_first_delivery_may_not(self):
        (found,) = check_order(TRUTH, events(1, 3, 2))
        assert "e2" in found
        assert "p0" in found

    def test_partitions_have_no_order_among_each_other(self):
        assert check_order(TRUTH, [event(3), event(1, "p1"), event(4), event(2, "p1")]) == []

    def test_keys_have_one_across_partitions(self):
        delivered = [event(2), event(1, "p1")]
        assert check_order(TRUTH, delivered) == []
        (found,) = check_key_order(TRUTH, delivered)
        assert "in key" in found

    def test_order_keys_have_to_agree(self):
        delivered = [event(1), attrs.evolve(event(2), order_key="0000")]
        (found,) = check_key_order(TRUTH, delivered)
        assert "order_keys" in found

    def test_different_keys_have_none(self):
        assert check_key_order(TRUTH, [event(2, key="a"), event(1, key="b")]) == []


class TestLineage:
    PARENTS: ClassVar = {"m": ("l", "r"), "l": ("p",), "r": ("p",), "p": ("gone",), "x": ()}

    def test_parents_come_first(self):
        delivered = [event(1, "p"), event(2, "l"), event(3, "x"), event(4, "r"), event(5, "m")]
        assert check_lineage(delivered, self.PARENTS) == []

    @pytest.mark.parametrize(
        ("order", "child", "ancestor"),
        [("lp", "l", "p"), ("plmr", "m", "r"), ("mp", "m", "p"), ("prpl", "r", "p")],
    )
    def test_a_child_that_was_early_is_named(self, order, child, ancestor):
        delivered = [event(number, name) for number, name in enumerate(order)]
        assert f"partition {child} was read before its ancestor {ancestor} was drained" in check_lineage(
            delivered, self.PARENTS
        )

    def test_redelivery_of_a_parent_may_come_later(self):
        assert check_lineage([event(1, "p"), event(2, "l"), event(1, "p")], self.PARENTS) == []

    def test_long_lives_do_not_exhaust_the_stack(self):
        parents = {f"p{number}": (f"p{number - 1}",) if number else () for number in range(20_000, -1, -1)}
        assert check_lineage([event(1, "p20000"), event(2, "p0")], parents) != []


class TestWatermarks:
    def test_they_rise(self):
        assert check_watermarks([page(1, watermark=1), page(watermark=None), page(3, watermark=3)]) == []

    def test_going_back_is_found(self):
        (found,) = check_watermarks([page(watermark=3), page(watermark=None), page(watermark=2)])
        assert "went back" in found

    def test_an_event_behind_it_is_found(self):
        (found,) = check_watermarks([page(3, watermark=3), page(2, watermark=3)])
        assert "e2" in found

    def test_an_event_of_the_same_page_may_be_older(self):
        assert check_watermarks([page(1, 2, 3, watermark=3)]) == []

    def test_redelivery_may_be_older(self):
        assert check_watermarks([page(1, 3, watermark=3), page(1)]) == []
        assert check_watermarks([page(3, watermark=3), page(1)], seen={"e1"}) == []


class TestIdentity:
    def test_redelivery_repeats_the_event(self):
        assert check_identity(events(1, 2, 1)) == []

    def test_an_id_for_two_events_is_found(self):
        (found,) = check_identity([event(1), attrs.evolve(event(2), event_id="e1")])
        assert "e1" in found

    def test_two_ids_for_one_change_are_found(self):
        delivered = [event(1), attrs.evolve(event(1), event_id="other")]
        (found,) = check_identity(delivered, lambda delivered: delivered.order_key)
        assert "e1, other" in found
