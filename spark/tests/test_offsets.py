"""Tests offsets: their canonical text, and the errors for a checkpoint of another source."""

import json
from datetime import UTC, datetime

import pytest

from multiclouddb_api import AtTime, Beginning, MulticloudDbError, Now
from multiclouddb_spi import Range
from multiclouddb_spi.planning.offset_log import logged_end
from pyspark_multiclouddb.checkpoint import (
    Checkpoint,
    Pinned,
    Symbolic,
    offset_from_json,
    offset_to_json,
    ranges_of,
)
from pyspark_multiclouddb.options import parse_options
from testing.spark_checkpoint import make_checkpoint, write_offset

PLACE = {"url": "embedded:///data/store.db", "collection": "orders"}
SETTINGS = parse_options(PLACE)
MODES = parse_options({**PLACE, "oldItemState": "require"})
SNAPSHOT = {"plan": "9f", "floor": "f1", "over": False, "whole": True}


def at(*entries):
    return {"p": list(entries)}


# A query that a newer version of this source continues has an offset of one of these forms in its checkpoint.
STORED = [
    (SETTINGS, Symbolic(Beginning()), {"from": "beginning"}),
    (SETTINGS, Symbolic(Now()), {"from": "now"}),
    (
        SETTINGS,
        Symbolic(AtTime(datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC))),
        {"from": "2026-01-31T12:00:00.000005+00:00"},
    ),
    (
        SETTINGS,
        Pinned("i-1", at(["p1", [7, 1]], ["p0", {"b": 1, "a": None}], ["p3", [[1]], 4, ["p1"]])),
        {"c": at(["p1", [7, 1]], ["p0", {"a": None, "b": 1}], ["p3", [[1]], 4, ["p1"]]), "inc": "i-1"},
    ),
    (SETTINGS, Pinned(None, at(), {"p9": [4]}), {"c": at(), "e": {"p9": [4]}, "inc": None}),
    (
        MODES,
        Pinned("i-1", at(["p0", 5]), {"p3": 9}, True, at(["p0", 1]), True, SNAPSHOT, {"count": 1}, "w", 2),
        {
            "c": at(["p0", 5]),
            "e": {"p3": 9},
            "empty": True,
            "inc": "i-1",
            "lost": 2,
            "modes": {"oldItemState": "require"},
            "more": True,
            "o": at(["p0", 1]),
            "poison": {"count": 1},
            "s": SNAPSHOT,
            "warning": "w",
        },
    ),
]


@pytest.mark.parametrize(("settings", "offset", "stored"), STORED)
def test_stored_form_is_canonical_and_never_changes(settings, offset, stored):
    text = json.dumps({**stored, "src": SETTINGS.source, "v": 1}, sort_keys=True)
    assert json.dumps(offset_to_json(settings, offset)) == text
    assert offset_from_json(settings, json.loads(text)) == offset


PINNED = {"v": 1, "src": SETTINGS.source, "inc": "i", "c": {}}
DAMAGED = "holds an offset that is not of this source"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (PINNED | {"modes": "full"}, "was written with the default newItemState"),
        (PINNED | {"src": "other"}, "is of another source than embedded orders; set provider, database"),
        (PINNED | {"v": 2, "new": True}, r"was written by a later version of this source \(form 2\); update"),
        *(
            (value, DAMAGED)
            for value in (
                None,
                7,
                {},
                {"v": 1},
                {"v": 1, "src": SETTINGS.source},
                {"v": "1", "src": SETTINGS.source, "from": "now"},
                {name: PINNED[name] for name in ("v", "src", "c")},
                PINNED | {"inc": 5},
                PINNED | {"c": []},
                PINNED | {"c": "p0"},
                PINNED | {"e": []},
                PINNED | {"o": "p0"},
                PINNED | {"s": "9f"},
                PINNED | {"s": {"plan": "9f", "over": True}},
                PINNED | {"poison": 3},
                PINNED | {"warning": 3},
            )
        ),
    ],
    ids=str,
)
def test_offset_that_this_query_cannot_have_stored_is_refused(value, problem):
    with pytest.raises(MulticloudDbError, match=f"checkpoint: {problem}"):
        offset_from_json(SETTINGS, value)


START = at(["p0", 5], ["p1", 3], ["p2", 0], ["p3", [1], 4, ["p1"]])
MOVED = at(["p0", 5], ["p2", 4, 1], ["p3", 9])
READ = [Range("p1", 3, 8), Range("p2", 0, 4)]


@pytest.mark.parametrize(
    ("before", "after", "ranges"),
    [
        # Nothing lies before the pinned start; on Spark 4.0, the first batch begins at its origin.
        (Symbolic(Now()), Pinned("i", MOVED), []),
        (Symbolic(Now()), Pinned("i", MOVED, {"p1": 8}, origin=START), READ),
        (Pinned("i", START), Pinned("i", MOVED, {"p1": 8}), READ),
        # Between them, the user was allowed to know the deployment, or no longer.
        (Pinned("i", START), Pinned("i@d", MOVED, {"p1": 8}), READ),
        (Pinned("i@d", START), Pinned("i", MOVED, {"p1": 8}), READ),
        (Pinned(None, START), Pinned("d", MOVED, {"p1": 8}), READ),
        # Nothing lies between idle positions.
        (Pinned("i", at(["p0", 5])), Pinned("i", at(["p0", 9]), empty=True), []),
        (Pinned("i", at(["p0", 9]), empty=True), Pinned("i", at(["p0", 12])), [Range("p0", 9, 12)]),
    ],
)
def test_ranges_are_what_moved_and_what_ended(before, after, ranges):
    assert ranges_of(before, after) == ranges


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (Pinned("i", at()), Symbolic(Now()), "contains a range that ends before its start"),
        (Pinned("i", at()), Pinned("j", at()), "contains positions of two incarnations"),
        (Pinned("i@d", at()), Pinned("j@d", at()), "contains positions of two incarnations"),
        (Pinned("i", at([5])), Pinned("i", at()), "holds a damaged offset"),
    ],
)
def test_range_that_cannot_have_been_planned_is_refused(before, after, message):
    with pytest.raises(MulticloudDbError, match=f"checkpoint: {message}"):
        ranges_of(before, after)


def test_a_folder_that_is_no_checkpoint_yet_is_not_said_to_be_another_query_s(tmp_path):
    (tmp_path / "offsets").mkdir()
    with pytest.raises(MulticloudDbError, match="has no id of a query, so it is no checkpoint yet"):
        Checkpoint(str(tmp_path)).query("this query")


OURS = {"v": 1, "src": "x", "c": {}, "inc": None}


def log(form, *lines):
    return "\n".join([form, '{"batchWatermarkMs": 0, "conf": {"a": "\u2028v1"}}', *lines])


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        (log("v1", json.dumps(OURS)), 1),
        (log("v1", "-", json.dumps(OURS)), 2),
        (log("v1", "7", json.dumps(OURS)), 2),
        (log("v1", json.dumps({"inner": json.dumps(OURS), "other": [1]})), 1),
        (log("v2", "0:" + json.dumps(OURS)), 1),
        (log("v2", "orders_source:" + json.dumps(OURS)), 1),
        (log("v2", "a:-", "b:7", 'c:{"x": 1}', "d:" + json.dumps(OURS)), 4),
    ],
)
def test_both_formats_of_spark_s_log_are_read(text, sources):
    end = logged_end(text)
    assert (end.offsets, end.sources) == ((OURS,), sources)


UNKNOWN = [
    *("", "v1", log("v1"), log("v1", "7"), log("v1", "[]"), log("v1", "null")),
    *(log("v2", "0:-"), log("v2", "0:7")),
    log("v1", '{"a": [1, {"src": 2}]}'),
    log("v1", "0:" + json.dumps(OURS)),
    log("v2", json.dumps(OURS)),
    *(
        log(form, name + json.dumps(OURS))
        for form in ("v3", "v12", "1", json.dumps(OURS))
        for name in ("", "0:")
    ),
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_log_in_which_nothing_is_recognised_says_nothing(text, tmp_path):
    """Each answer that a sink takes from the log would otherwise be *no*, which nobody has said."""
    folder = make_checkpoint(tmp_path / "checkpoint", batches=2)
    (folder / "offsets" / "0").write_text(text)
    (folder / "commits" / "0").write_text("v1\n{}")
    checkpoint = Checkpoint(str(folder))
    asks = [
        lambda: checkpoint.scan(0),
        lambda: checkpoint.is_first(1),
        lambda: checkpoint.check_rows(0),
        lambda: checkpoint.digest(0),
        lambda: checkpoint.has_gap(0),
        lambda: checkpoint.feed(0),
        lambda: checkpoint.notes(0),
        checkpoint.is_scanned,
    ]
    for ask in asks:
        with pytest.raises(MulticloudDbError, match="it is not known what the batch contains; pass"):
            ask()


@pytest.mark.parametrize("log_format", [1, 2])
def test_what_a_sink_asks_is_answered_from_both_formats(log_format, tmp_path):
    folder = make_checkpoint(tmp_path / "checkpoint", "query")
    snapshot = {"plan": "p", "floor": "f", "over": False, "whole": True}
    write_offset(folder, 0, log_format=log_format, s=snapshot, fresh=True)
    write_offset(
        folder, 1, log_format=log_format, s=snapshot | {"over": True}, lost=1, gone=["was dropped"],
        feed=["embedded", "main", "orders"],
    )  # fmt: skip
    checkpoint = Checkpoint(str(folder))
    assert (checkpoint.scan(0).is_first, checkpoint.scan(1).is_over) == (True, True)
    assert (checkpoint.is_first(1), checkpoint.has_gap(1)) == (True, True)
    assert checkpoint.feed(1).address.collection == "orders"
    with pytest.raises(MulticloudDbError, match="was dropped"):
        checkpoint.check_rows(1)
    (folder / "commits" / "0").write_text("v1\n{}")
    assert not checkpoint.is_scanned()
