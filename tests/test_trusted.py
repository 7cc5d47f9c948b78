"""Tests that events and keys built from columns behave like those that the constructors build."""

from __future__ import annotations

import copy
import pickle
import weakref
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbKey, ResourceAddress
from multiclouddb_api.event import trusted_events, with_partition_ids
from multiclouddb_api.key import trusted_keys


def columns(count: int) -> list[list[Any]]:
    return [
        [f"id-{number}" for number in range(count)],
        trusted_keys([{"number": number} for number in range(count)]),
        [ChangeType.UPDATE] * count,
        [datetime(2026, 1, 1, tzinfo=UTC)] * count,
        [{"number": number, "tags": ["a"]} for number in range(count)],
        [None] * count,
        [f"{number:019}" for number in range(count)],
        [False] * count,
        [False] * count,
        [ResourceAddress("main", "items")] * count,
        ["p0"] * count,
        [{"row": number} for number in range(count)],
    ]


def built(count: int = 3) -> list[ChangeEvent]:
    return trusted_events(count, columns(count))


def called(count: int = 3) -> list[ChangeEvent]:
    return [ChangeEvent(*row) for row in zip(*columns(count), strict=True)]


@pytest.fixture(params=["event", "key"])
def value(request: pytest.FixtureRequest) -> Any:
    event = built()[1]
    return event if request.param == "event" else event.key


def test_they_equal_others_and_hash_like_them():
    assert {type(event) for event in built()} == {ChangeEvent}
    assert {type(event.key) for event in built()} == {MulticloudDbKey}
    assert built() == called()
    assert len({*built(), *called()}) == len({event.key for event in [*built(), *called()]}) == 3
    assert [repr(event) for event in built()] == [repr(event) for event in called()]
    rows = [[attrs.astuple(event, recurse=False) for event in made] for made in (built(), called())]
    assert rows[0] == rows[1]  # with the attributes that do not take part in a comparison
    keys = trusted_keys([{"a": 1, "b": 2}], 2)
    assert (keys, trusted_keys([])) == ([MulticloudDbKey({"a": 1, "b": 2}, 2)], [])


def test_they_are_frozen(value: Any):
    for name in [*(field.name for field in attrs.fields(type(value))), "other"]:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)
    assert not hasattr(value, "__dict__")


def test_they_can_be_copied(value: Any):
    pickled = [pickle.loads(pickle.dumps(value, each)) for each in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*pickled, copy.copy(value), copy.deepcopy(value), attrs.evolve(value)):
        assert (type(again), again) == (type(value), value)
    event = built()[0]
    assert copy.deepcopy(event).new_item_state is not event.new_item_state
    assert attrs.evolve(event, event_id="other").event_id == "other"
    assert attrs.evolve(event.key, components={"number": 7}) == MulticloudDbKey({"number": 7})


def test_they_can_be_referred_to_weakly():
    events = built()
    references = [weakref.ref(events[0]), weakref.ref(events[0].key)]
    assert [reference() for reference in references] == [events[0], events[0].key]
    events.clear()
    assert [reference() for reference in references] == [None, None]


def test_a_column_that_is_too_short_or_missing_is_refused():
    """Otherwise an event would lack an attribute, or contain the value of another attribute."""
    for place in range(12):
        short = columns(3)
        short[place] = short[place][:2]
        with pytest.raises(ValueError, match="too short"):
            trusted_events(3, short)
    for wrong in (columns(3)[:-1], [*columns(3), [1, 2, 3]]):
        with pytest.raises(ValueError, match="unpack"):
            trusted_events(3, wrong)
    endless = [iter([*column, *column]) for column in columns(3)]
    assert trusted_events(3, endless) == called()
    assert trusted_events(0, columns(0)) == []


def test_a_copy_with_other_partition_ids_has_everything_else():
    events, ids = built(), ["p1", "p2", "p3"]
    copies = with_partition_ids(events, ids)
    for event, copied, name in zip(events, copies, ids, strict=True):
        expected = attrs.evolve(event, partition_id=name)
        assert attrs.astuple(copied, recurse=False) == attrs.astuple(expected, recurse=False)
    assert events == built()
    assert with_partition_ids((), ()) == []
    with pytest.raises(ValueError, match="too short"):
        with_partition_ids(events, ids[:2])
