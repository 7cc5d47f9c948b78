"""Tests that rows become events and Arrow rows that contain exactly the written values."""

from datetime import UTC, datetime, timedelta, timezone

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import multiclouddb_api as api
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_embedded.mapping import (
    EmbeddedMapper,
    EmbeddedView,
    Records,
    cursor_of,
    from_micros,
    position_of,
    to_micros,
)

patiently = settings(deadline=None, max_examples=50)  # a slow machine must not fail the test

ADDRESS = api.ResourceAddress("main", "items")
VIEW = EmbeddedView(ADDRESS, "embedded:1.2:p0", 1, native=False)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["$", "$decimal", '"$', "\x1e", "null", "},\n{", "\x00"]
)
moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | texts
    | st.binary(max_size=20)
    | moments.filter(lambda moment: 1 < moment.year < 9999)
    | st.uuids()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(texts, values, max_size=4)
keys = st.dictionaries(texts.filter(bool), scalars, min_size=1, max_size=3)
rows = st.lists(
    st.tuples(
        keys,
        st.none() | documents,
        st.none() | documents,
        st.sampled_from([0, 1, 2]),
        st.integers(0, to_micros(datetime.max.replace(tzinfo=UTC))),
    ),
    min_size=1,
    max_size=6,
)


def records(table, *, old=True):
    """Return rows as SQLite returns them."""

    def column(index):
        return b"\x1e".join(api.encode_json(row[index]) for row in table)

    def numbers(index):
        return ",".join(str(row[index]) for row in table)

    seqs = ",".join(str(10**n) for n in range(len(table)))
    return Records(len(table), seqs, numbers(4), numbers(3), column(0), column(1), column(2) if old else None)


def to_events(made, start, stop, view):
    return EmbeddedMapper(view).events(made, start, stop)


def to_arrow(made, start, stop, view):
    return EmbeddedMapper(view).arrow(made, start, stop)


def same(a, b):
    """Return True if two values are equal and have the same types; NaN equals NaN."""
    return api.canonical_json(a) == api.canonical_json(b)


class TestEvents:
    @patiently
    @given(rows, st.data())
    def test_keys_and_documents_come_back_exactly(self, table, data):
        """The mapper makes keys and events without validation; they equal the objects that a user makes."""
        whole = to_events(records(table), 0, len(table), VIEW)
        assert len(whole) == len(table)
        for event, (key, new, old, kind, ts) in zip(whole, table, strict=True):
            assert list(event.key.components) == list(key)
            assert same(event.new_item_state, new)
            assert same(event.old_item_state, old)
            event = attrs.evolve(event, new_item_state=None, old_item_state=None)
            kind, key = list(api.ChangeType)[kind], api.MulticloudDbKey(key)
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts)
            fields = (event.order_key, False, False, ADDRESS, "embedded:1.2:p0")
            built = api.ChangeEvent(event.event_id, key, kind, moment, None, None, *fields)
            assert event == built
            assert hash(event) == hash(built)
            assert type(event.key) is api.MulticloudDbKey
        start = data.draw(st.integers(0, len(table)))
        stop = data.draw(st.integers(start, len(table)))
        part = to_events(records(table), start, stop, VIEW)
        assert list(map(as_text, part)) == list(map(as_text, whole[start:stop]))

    def test_values_are_the_caller_s_own(self):
        """An application may change the objects that it received."""
        made = records([({"id": 1}, {"n": [1]}, None, 1, 7)])
        to_events(made, 0, 1, VIEW)[0].new_item_state["n"].append(2)
        assert to_events(made, 0, 1, VIEW)[0].new_item_state == {"n": [1]}


class TestArrow:
    @patiently
    @given(rows)
    def test_it_says_the_same_as_the_events(self, table):
        made = to_arrow(records(table), 0, len(table), VIEW)
        made.validate(full=True)
        assert made.schema == EVENT_SCHEMA
        expected = events_to_arrow(to_events(records(table), 0, len(table), VIEW))
        for name in EVENT_SCHEMA.names:
            ours, theirs = made.column(name).to_pylist(), expected.column(name).to_pylist()
            if name in ("key", "new_item_state", "old_item_state"):
                ours, theirs = (
                    [text if text is None else api.canonical_json(api.decode_json(text)) for text in texts]
                    for texts in (ours, theirs)
                )
            assert ours == theirs, name

    def test_stored_text_is_passed_on_as_it_is(self):
        text = '{"b":1,"a":{"$decimal":"1.50"}}'
        made = Records(1, "1", "0", "0", b'{"id":1}', text.encode(), None)
        assert to_arrow(made, 0, 1, VIEW).column("new_item_state").to_pylist() == [text]

    def test_a_batch_may_be_empty_and_an_address_without_database(self):
        made = to_arrow(Records(0, "", "", "", b"", None, None), 0, 0, VIEW)
        assert (made.num_rows, made.schema) == (0, EVENT_SCHEMA)
        view = attrs.evolve(VIEW, address=api.ResourceAddress(None, "items"))
        made = to_arrow(records([({"id": 1}, {}, None, 0, 0)]), 0, 1, view)
        assert [made.column(name).to_pylist() for name in ("database", "collection")] == [[None], ["items"]]


class TestPositions:
    @patiently
    @given(st.integers(0, 2**63 - 1), st.integers(0, to_micros(datetime.max.replace(tzinfo=UTC))))
    def test_cursors_round_trip(self, seq, ts):
        cursor = cursor_of(seq, ts)
        assert position_of(cursor) == (seq, ts)
        assert position_of(orjson.loads(orjson.dumps(cursor))) == (seq, ts)

    @patiently
    @given(moments)
    def test_times_round_trip(self, moment):
        assert from_micros(to_micros(moment)) == moment


def as_text(event):
    return (
        event.event_id,
        event.key,
        api.canonical_json(event.new_item_state),
        api.canonical_json(event.old_item_state),
        event.timestamp,
    )


@pytest.mark.parametrize("name", ["keys", "docs", "olds"])
def test_a_selection_of_rows_keeps_every_column(name):
    made = records([({"id": n}, {"n": n}, {"o": n}, 0, n) for n in range(5)])
    picked = made.select([1, 4])
    assert (picked.seqs, picked.times, picked.types) == ([10, 10_000], [1, 4], [0, 0])
    assert picked.texts(name, 0, 2) == [made.texts(name, 0, 5)[1], made.texts(name, 0, 5)[4]]
