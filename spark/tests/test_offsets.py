"""Tests offsets: their canonical text, and the errors for a checkpoint of another source."""

import json
from datetime import UTC, datetime

import pytest

from multiclouddb_api import AtTime, Beginning, ChangeFeedRequest, MulticloudDbError, Now
from multiclouddb_conformance.simulation import Simulation, SimulationProvider
from multiclouddb_spi import Range
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import Tries
from pyspark_multiclouddb.offsets import Pinned, Symbolic, offset_from_json, offset_to_json, ranges_of
from pyspark_multiclouddb.options import parse_options

SETTINGS = parse_options({"url": "embedded:///data/store.db", "collection": "orders"})
OTHER = parse_options({"url": "embedded:///data/store.db", "collection": "others"})


def at(*entries):
    """Return a lineage as JSON."""
    return {"p": list(entries)}


OFFSETS = [
    Symbolic(Beginning()),
    Symbolic(Now()),
    Symbolic(AtTime(datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC))),
    Pinned("i-1", at(["p1", [7, 1]], ["p0", {"b": 1, "a": None}], ["p2", [9], 1], ["p3", [[1]], 4, ["p1"]])),
    Pinned(None, at(), {"p9": [4]}),
    Pinned(None, at(["p0", [5]]), empty=True),
]


@pytest.mark.parametrize("offset", OFFSETS, ids=str)
def test_round_trip_through_the_checkpoint(offset):
    stored = json.dumps(offset_to_json(SETTINGS, offset))
    assert offset_from_json(SETTINGS, json.loads(stored)) == offset
    assert json.dumps(offset_to_json(SETTINGS, offset_from_json(SETTINGS, json.loads(stored)))) == stored


@pytest.mark.parametrize("offset", OFFSETS, ids=str)
def test_text_is_canonical(offset):
    value = offset_to_json(SETTINGS, offset)
    assert json.dumps(value) == json.dumps(value, sort_keys=True)
    assert value["v"] == 1
    assert value["src"] == SETTINGS.source


def test_symbolic_start_is_short():
    assert offset_to_json(SETTINGS, Symbolic(Beginning())) == {
        "from": "beginning",
        "src": SETTINGS.source,
        "v": 1,
    }


def test_stored_form_never_changes():
    """A query that a newer version of this source continues has an offset of this form in its checkpoint."""
    settings = parse_options(
        {"url": "embedded:///data/store.db", "collection": "orders", "oldItemState": "require"}
    )
    snapshot = {"plan": "9f", "floor": "f1", "over": False, "whole": True}
    offset = Pinned("i-1", at(["p0", 5]), {"p3": 9}, True, at(["p0", 1]), True, snapshot)
    stored = {
        "c": {"p": [["p0", 5]]},
        "e": {"p3": 9},
        "empty": True,
        "inc": "i-1",
        "modes": {"oldItemState": "require"},
        "more": True,
        "o": {"p": [["p0", 1]]},
        "s": snapshot,
        "src": SETTINGS.source,
        "v": 1,
    }
    assert offset_to_json(settings, offset) == stored
    assert offset_from_json(settings, stored) == offset


def test_offset_with_unreadable_modes_is_refused():
    value = offset_to_json(SETTINGS, Pinned("i", at())) | {"modes": "full"}
    with pytest.raises(MulticloudDbError, match=r"checkpoint: was written with the default newItemState"):
        offset_from_json(SETTINGS, value)


def test_offset_of_another_source_is_refused():
    value = offset_to_json(OTHER, Symbolic(Now()))
    with pytest.raises(
        MulticloudDbError,
        match=r"checkpoint: is of another source than embedded orders; set provider, database",
    ):
        offset_from_json(SETTINGS, value)


def test_offset_of_a_later_version_is_refused():
    value = offset_to_json(SETTINGS, Symbolic(Now())) | {"v": 2, "new": True}
    with pytest.raises(
        MulticloudDbError, match=r"later version of this source \(form 2\); update multiclouddb"
    ):
        offset_from_json(SETTINGS, value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {},
        {"v": 1},
        {"v": 1, "src": SETTINGS.source},
        {"v": "1", "src": SETTINGS.source, "from": "now"},
        {"v": 1, "src": SETTINGS.source, "inc": 5, "c": {}},
        {"v": 1, "src": SETTINGS.source, "c": {}},
        {"v": 1, "src": SETTINGS.source, "inc": "i", "c": []},
        {"v": 1, "src": SETTINGS.source, "inc": "i", "c": "p0"},
        {"v": 1, "src": SETTINGS.source, "inc": "i", "c": {}, "e": []},
        {"v": 1, "src": SETTINGS.source, "inc": "i", "c": {}, "o": "p0"},
        {"v": 1, "src": SETTINGS.source, "inc": "i", "c": {}, "s": "9f"},
        {"v": 1, "src": SETTINGS.source, "inc": "i", "c": {}, "s": {"plan": "9f", "over": True}},
    ],
    ids=str,
)
def test_what_is_no_offset_is_refused(value):
    with pytest.raises(MulticloudDbError, match=r"checkpoint: holds an offset that is not of this source"):
        offset_from_json(SETTINGS, value)


def test_recreated_resource_is_refused():
    sim = Simulation()
    provider = SimulationProvider(sim)
    spec = spec_of(provider, ChangeFeedRequest(sim.address, Now()), "open")
    opened = OpenFeed(provider, spec, Tries(provider).call, 5)
    offset = Pinned(sim.incarnation, at())
    offset.check_incarnation(opened)
    opened.renew()
    sim.recreate()
    with pytest.raises(MulticloudDbError, match=r"earlier sim/items, .* recreated .* checkpointLocation"):
        offset.check_incarnation(opened)


class TestRanges:
    def test_nothing_lies_in_front_of_the_pinned_start(self):
        assert ranges_of(Symbolic(Now()), Pinned("i", at(["p0", 5]))) == []

    def test_what_moved_and_what_ended(self):
        before = Pinned("i", at(["p0", 5], ["p1", 3], ["p2", 0], ["p3", [1], 4, ["p1"]]))
        after = Pinned("i", at(["p0", 5], ["p2", 4, 1], ["p3", 9]), {"p1": 8})
        assert ranges_of(before, after) == [Range("p1", 3, 8), Range("p2", 0, 4)]

    def test_first_batch_on_spark_4_0_begins_at_its_origin(self):
        origin = at(["p0", 5], ["p1", 3], ["p2", 0])
        after = Pinned("i", at(["p0", 5], ["p2", 4, 1]), {"p1": 8}, origin=origin)
        assert ranges_of(Symbolic(Now()), after) == [Range("p1", 3, 8), Range("p2", 0, 4)]

    def test_nothing_lies_between_idle_positions(self):
        before, after = Pinned("i", at(["p0", 5])), Pinned("i", at(["p0", 9]), empty=True)
        assert ranges_of(before, after) == []
        assert ranges_of(after, Pinned("i", at(["p0", 12]))) == [Range("p0", 9, 12)]

    @pytest.mark.parametrize(
        ("before", "after", "message"),
        [
            (Pinned("i", at()), Symbolic(Now()), "contains a range that ends before its start"),
            (Pinned("i", at()), Pinned("j", at()), "contains positions of two incarnations"),
            (Pinned(None, at()), Pinned("j", at()), "contains positions of two incarnations"),
            (Pinned("i", at()), Pinned(None, at()), "contains positions of two incarnations"),
            (Pinned("i", at([5])), Pinned("i", at()), "holds a damaged offset"),
        ],
    )
    def test_what_cannot_have_been_planned_is_refused(self, before, after, message):
        with pytest.raises(MulticloudDbError, match=f"checkpoint: {message}"):
            ranges_of(before, after)
