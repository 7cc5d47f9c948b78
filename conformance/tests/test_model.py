"""Tests each check on delivered events with the smallest feed that violates it."""

from datetime import UTC, datetime, timedelta

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
TRUTH = [f"e{number}" for number in range(1, 6)]
PARENTS = {"m": ("l", "r"), "l": ("p",), "r": ("p",), "p": ("gone",), "x": ()}


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


def events(*numbers):
    return [event(number) for number in numbers]


def page(*numbers, watermark=None):
    mark = None if watermark is None else NOON + timedelta(seconds=watermark)
    return ChangeFeedPage(tuple(events(*numbers)), "token", diagnostics=OperationDiagnostics(watermark=mark))


def read(partitions):
    """Return one event of each partition, named by a letter."""
    return [event(number, name) for number, name in enumerate(partitions)]


class Bound:
    """A check with its first arguments; its name is the id of its cases."""

    def __init__(self, check, *arguments):
        self.check, self.arguments = check, arguments

    def __call__(self, delivered):
        return self.check(*self.arguments, delivered)

    def __repr__(self):
        return self.check.__name__


COMPLETE, KNOWN, ORDER, KEY_ORDER = (
    Bound(check, TRUTH) for check in (check_complete, check_known, check_order, check_key_order)
)
LINEAGE = Bound(lambda delivered: check_lineage(delivered, PARENTS))
OF_EACH_CHANGE = Bound(lambda delivered: check_identity(delivered, lambda each: each.order_key))


@pytest.mark.parametrize(
    ("check", "delivered"),
    [
        (COMPLETE, events(5, 4, 3, 2, 1)),
        (ORDER, events(1, 2, 3, 2, 3, 4)),
        (ORDER, [event(3), event(1, "p1"), event(4), event(2, "p1")]),
        (ORDER, [event(2), event(1, "p1")]),
        (KEY_ORDER, [event(2, key="a"), event(1, key="b")]),
        (LINEAGE, read("plxrm")),
        (LINEAGE, [event(1, "p"), event(2, "l"), event(1, "p")]),
        (check_watermarks, [page(1, watermark=1), page(), page(3, watermark=3)]),
        (check_watermarks, [page(1, 2, 3, watermark=3)]),
        (check_watermarks, [page(1, 3, watermark=3), page(1)]),
        (check_identity, events(1, 2, 1)),
    ],
)
def test_a_right_feed_passes(check, delivered):
    assert check(delivered) == []


@pytest.mark.parametrize(
    ("check", "delivered", "named"),
    [
        (KNOWN, events(1, 9, 9), ["e9"]),
        (ORDER, events(1, 3, 2), ["e2", "p0"]),
        (KEY_ORDER, [event(2), event(1, "p1")], ["in key"]),
        (KEY_ORDER, [event(1), attrs.evolve(event(2), order_key="0000")], ["order_keys"]),
        (check_watermarks, [page(watermark=3), page(), page(watermark=2)], ["went back"]),
        (check_watermarks, [page(3, watermark=3), page(2, watermark=3)], ["e2"]),
        (check_identity, [event(1), attrs.evolve(event(2), event_id="e1")], ["e1"]),
        (OF_EACH_CHANGE, [event(1), attrs.evolve(event(1), event_id="other")], ["e1, other"]),
    ],
)
def test_what_is_wrong_is_named(check, delivered, named):
    (found,) = check(delivered)
    assert [text for text in named if text not in found] == []


@pytest.mark.parametrize(
    ("order", "child", "ancestor"),
    [("lp", "l", "p"), ("plmr", "m", "r"), ("mp", "m", "p"), ("prpl", "r", "p")],
)
def test_a_child_that_was_early_is_named(order, child, ancestor):
    early = f"partition {child} was read before its ancestor {ancestor} was drained"
    assert early in check_lineage(read(order), PARENTS)


def test_long_lives_do_not_exhaust_the_stack():
    parents = {f"p{number}": (f"p{number - 1}",) if number else () for number in range(20_000, -1, -1)}
    assert check_lineage([event(1, "p20000"), event(2, "p0")], parents) != []


def test_every_loss_is_named_and_redelivery_is_counted():
    assert check_complete(TRUTH, events(1, 2, 2, 4)) == ["lost: e3", "lost: e5"]
    delivered = events(1, 2, 1, 3, 2, 1)
    assert (count_duplicates(delivered), first_deliveries(delivered)) == (3, events(1, 2, 3))
    assert check_watermarks([page(3, watermark=3), page(1)], seen={"e1"}) == []
