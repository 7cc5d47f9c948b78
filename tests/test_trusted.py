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
from multiclouddb_api.event import trusted_events
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


def test_they_are_of_the_class_itself():
    assert {type(event) for event in built()} == {ChangeEvent}
    assert {type(event.key) for event in built()} == {MulticloudDbKey}


def test_they_equal_others_and_hash_like_them():
    assert built() == called()
    assert len({*built(), *called()}) == 3
    assert len({event.key for event in [*built(), *called()]}) == 3
    assert [repr(event) for event in built()] == [repr(event) for event in called()]


def test_every_attribute_has_its_own_column():
    assert [attrs.astuple(event, recurse=False) for event in built()] == [
        attrs.astuple(event, recurse=False) for event in called()
    ]


def test_they_are_frozen(value: Any):
    for name in [field.name for field in attrs.fields(type(value))]:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(value, name)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.other = 1
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_they_can_be_pickled(value: Any, protocol: int):
    again = pickle.loads(pickle.dumps(value, protocol))
    assert type(again) is type(value)
    assert again == value


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_they_can_be_copied(value: Any, copied: Any):
    again = copied(value)
    assert type(again) is type(value)
    assert again == value


def test_a_deep_copy_shares_nothing():
    event = built()[0]
    again = copy.deepcopy(event)
    assert again.new_item_state is not event.new_item_state
    assert again.key.components is not event.key.components


def test_they_can_be_evolved(value: Any):
    assert attrs.evolve(value) == value
    changed = attrs.evolve(built()[0], event_id="other")
    assert type(changed) is ChangeEvent
    assert (changed.event_id, built()[0].event_id) == ("other", "id-0")
    assert attrs.evolve(built()[0].key, components={"number": 7}) == MulticloudDbKey({"number": 7})


def test_they_can_be_referred_to_weakly():
    events = built()
    references = [weakref.ref(events[0]), weakref.ref(events[0].key), weakref.ref(called()[0])]
    assert [reference() for reference in references] == [events[0], events[0].key, None]
    events.clear()
    assert [reference() for reference in references] == [None, None, None]


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


def test_a_column_may_be_endless():
    endless = [iter([*column, *column]) for column in columns(3)]
    assert trusted_events(3, endless) == called()


def test_no_rows_give_no_events():
    assert trusted_events(0, columns(0)) == []
    assert trusted_keys([]) == []
