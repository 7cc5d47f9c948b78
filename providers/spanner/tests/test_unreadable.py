"""Tests records of which not even the commit timestamp, the table or the form can be read.

A reader cannot know when such a record was committed, only between which records the service has sent it. It
is a poison record like every other: what comes before it is delivered, and its `skip_token` passes it and
nothing else.
"""

import json

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    NotKnown,
    Snapshot,
    encode_json,
)
from multiclouddb_spanner_emulator import Write, record, rows
from multiclouddb_spanner_emulator.errors import ServiceError
from multiclouddb_spanner_emulator.record import DataChange
from multiclouddb_spi import RecordFault
from multiclouddb_spi.faults import key_digest

from .feeds import Opened, feed, numbers

DAMAGES = ["commit", "far", "short", "table", "columns", "mods"]
POSTGRES = [*DAMAGES, "json"]
CASES = [*((False, each) for each in DAMAGES), *((True, each) for each in POSTGRES)]
IDS = [f"{'PostgreSQL' if postgres else 'GoogleSQL'}-{each}" for postgres, each in CASES]


def _damaged(fields, how):
    """Damage the fields of a record, in the order of GoogleSQL."""
    match how:
        case "commit":
            fields[0] = "soon"
        case "far":
            fields[0] = "99999-01-01T00:00:00Z"
        case "short":
            del fields[2:]
        case "table":
            fields[4] = None
            del fields[4:]
        case "columns":
            fields[5] = 7
        case "mods":
            fields[0], fields[6] = None, 7
    return fields


@pytest.fixture
def damage(monkeypatch):
    """Return a function that damages the records of poison."""

    def change(how):
        fields, text = DataChange.fields, DataChange.text

        def new_fields(record):
            (told,), *others = fields(record)
            return ([_damaged(told, how)] if record.transaction.startswith("poison") else [told]), *others

        def new_text(record):
            if not record.transaction.startswith("poison"):
                return text(record)
            if how == "json":
                return text(record)  # with the broken values of the poison
            record.mods.clear()
            data = json.loads(text(record))["data_change_record"]
            match how:
                case "commit" | "far":
                    data["commit_timestamp"] = "soon" if how == "commit" else "99999-01-01T00:00:00Z"
                case "short":
                    data = {"commit_timestamp": data["commit_timestamp"]}
                case "table":
                    del data["table_name"], data["commit_timestamp"]
                case "columns":
                    data["column_types"] = 7
                case "mods":
                    data["commit_timestamp"], data["mods"] = None, 7
            return json.dumps({"data_change_record": data}, separators=(",", ":"))

        monkeypatch.setattr(DataChange, "fields", new_fields)
        monkeypatch.setattr(DataChange, "text", new_text)

    return change


def poison(items):
    items.server.poison(items.scripted.database, "items_stream", "items", "a")


def read_past(items, start, size=0, **settings):
    """Read to the end, and skip poison; return the numbers, and the number of events before each poison."""
    found, skipped = [], []
    while len(skipped) < 20:
        try:
            for page in items.pages(start, size, **settings):
                found += page.events
                start = page.continuation_token
        except MulticloudDbError as error:
            skipped.append(len(found))
            start = error.detail.skip_token
            if error.category != ErrorCategory.PROVIDER_ERROR or start is None:
                raise
        else:
            return numbers(found), skipped
    pytest.fail("the poison is never passed")


@pytest.mark.parametrize(("postgres", "how"), CASES, ids=IDS)
class TestEveryDamage:
    @pytest.mark.parametrize("size", [0, 1])
    def test_it_is_passed_alone(self, damage, postgres, how, size):
        damage(how)
        with feed(postgres=postgres, initial_partitions=1) as items:
            token = items.token()
            items.fill(3)
            poison(items)
            poison(items)
            items.fill(3, start=3)
            assert read_past(items, token, size) == ([0, 1, 2, 3, 4, 5], [3, 3])
            assert read_past(items, token, size, fresh=True) == ([0, 1, 2, 3, 4, 5], [3, 3])

    def test_at_a_start(self, damage, postgres, how):
        damage(how)
        with feed(postgres=postgres, initial_partitions=1) as items:
            at = items.server.now()
            poison(items)
            items.fill(3)
            for start in (Beginning(), AtTime(at)):
                assert read_past(items, start) == ([0, 1, 2], [0])

    def test_with_required_rows(self, damage, postgres, how):
        damage(how)
        with feed(postgres=postgres, initial_partitions=1) as items:
            token = items.token(new_item_state_mode=NewItemStateMode.REQUIRE)
            poison(items)
            items.fill(2)
            assert read_past(items, token, new_item_state_mode=NewItemStateMode.REQUIRE) == ([0, 1], [0])

    def test_a_planner_sees_it_until_it_is_skipped(self, damage, postgres, how):
        damage(how)
        with feed(postgres=postgres, initial_partitions=1) as items, Opened(items) as made:
            ((name, cursor),) = made.starts(Beginning()).items()
            poison(items)
            reader = made.feed.open(name, cursor)
            batch = reader.fetch(100, 10**6, 0, made.soon())
            with pytest.raises(RecordFault) as caught:
                batch.events(0, len(batch))
            reader.close()
            counts = [
                made.feed.heads({name: each}, None, made.soon())[name].records
                for each in (cursor, caught.value.skip_cursor)
            ]
            assert counts == [None, 0]


@pytest.mark.parametrize("size", [0, 1, 2])
def test_in_the_commit_timestamp_of_other_changes(damage, size):
    """Then a reader meets it again at the next change, and passes it there."""
    damage("commit")
    with feed(initial_partitions=1) as items:
        token = items.token()
        items.fill(2)
        with items.server.one_commit_timestamp():
            items.fill(2, start=2)
            poison(items)
            items.fill(2, start=4)
        items.fill(2, start=6)
        found, skipped = read_past(items, token, size)
        assert list(dict.fromkeys(found)) == list(range(8))
        assert 1 <= len(skipped) <= 3


HALF = r"\ud83d"
JSON = {
    False: (
        "CREATE TABLE items (id STRING(MAX) NOT NULL, n INT64, j JSON) PRIMARY KEY (id)",
        "CREATE CHANGE STREAM items_stream FOR items OPTIONS (value_capture_type = 'NEW_ROW')",
    ),
    True: (
        "CREATE TABLE items (id varchar NOT NULL, n bigint, j jsonb, PRIMARY KEY (id))",
        "CREATE CHANGE STREAM items_stream FOR items WITH (value_capture_type = 'NEW_ROW')",
    ),
}


# The service refuses half of a surrogate pair in JSON. What another server, or a later version, sends
# must still not stop a reader.
@pytest.mark.parametrize("postgres", [False, True], ids=["GoogleSQL", "PostgreSQL"])
class TestJson:
    """A text that cannot be decoded, in a column of JSON or in a key."""

    @pytest.fixture
    def items(self, monkeypatch, postgres):
        plain, text = record.to_value, DataChange.text

        def to_value(value):
            return plain(value.replace("CUT", HALF) if isinstance(value, str) else value)

        monkeypatch.setattr(record, "to_value", to_value)
        monkeypatch.setattr(rows, "to_value", to_value)
        monkeypatch.setattr(DataChange, "text", lambda each: text(each).replace("CUT", HALF))
        with feed(*JSON[postgres], postgres=postgres, initial_partitions=1) as made:
            yield made

    def fill(self, items, where):
        items.put(("a", 0, '{"x": 1}'), names=("id", "n", "j"))
        key, value = {"value": ("b", '{"x": "CUT"}'), "name": ("b", '{"CUT": 1}'), "key": ("bCUT", "{}")}[
            where
        ]
        items.put((key, 1, value), names=("id", "n", "j"))
        items.put(("c", 2, '{"x": 2}'), names=("id", "n", "j"))

    @pytest.mark.parametrize("where", ["value", "name", "key"])
    @pytest.mark.parametrize("size", [0, 1])
    def test_a_change_is_passed_alone(self, items, where, size):
        token = items.token()
        self.fill(items, where)
        assert read_past(items, token, size) == ([0, 2], [1])

    @pytest.mark.parametrize("where", ["value", "name"])
    @pytest.mark.parametrize("size", [0, 1])
    def test_a_row_is_passed_alone_and_named(self, items, where, size):
        self.fill(items, where)
        assert read_past(items, Snapshot(), size) == ([0, 2], [1])
        with pytest.raises(MulticloudDbError, match=key_digest(encode_json({"id": "b"}).decode())):
            items.drain(Snapshot())

    @pytest.mark.parametrize("where", ["value", "name"])
    def test_a_look_up_says_that_it_does_not_know(self, items, where):
        self.fill(items, where)
        keys = [MulticloudDbKey({"id": each}) for each in "abcd"]
        found = items.client.lookup(items.address, keys)
        assert [type(found[key]) for key in keys] == [ChangeEvent, NotKnown, ChangeEvent, type(None)]


@pytest.mark.parametrize("postgres", [False, True], ids=["GoogleSQL", "PostgreSQL"])
def test_the_service_stores_no_half_of_a_surrogate_pair(postgres):
    with (
        feed(*JSON[postgres], postgres=postgres) as items,
        pytest.raises(ServiceError, match="Could not parse"),
    ):
        items.scripted.server.commit(
            items.scripted.database, Write("insert", "items", ("id", "j"), [["a", r'{"x": "\ud83d"}']])
        )


def test_a_split_after_it_is_followed(damage):
    damage("commit")
    with feed(initial_partitions=1) as items:
        token = items.token()
        poison(items)
        items.server.split(items.open_partitions()[0])
        items.fill(6)
        found, skipped = read_past(items, token)
        assert sorted(found) == list(range(6))
        assert skipped == [0]
