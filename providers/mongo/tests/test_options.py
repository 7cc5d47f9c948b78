"""Tests the options that only MongoDB has: typed values, of which some are stored in the token."""

import functools

import attrs
import pytest
from bson.timestamp import Timestamp

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance import refusals
from multiclouddb_mongo import MongoOptions

FIELDS = [field.name for field in attrs.fields(MongoOptions)]
GOOD = {
    "full_document": "whenAvailable",
    "full_document_before_change": "off",
    "resume_after": {"_data": "82AB"},
    "start_after": {"_data": "82AB"},
    "start_at_operation_time": Timestamp(1_763_634_171, 1),
    "max_await_time_ms": 1,
    "batch_size": 1,
    "collation": {"locale": "de"},
    "comment": {"any": ["thing"]},
    "show_expanded_events": True,
    "pipeline": ({"$match": {"operationType": "insert"}},),
    "after_invalidate": "follow",
    "allow_missing": True,
}
# The options for which a token that was made with one value must not be used with another value.
POSITIONS = {"pipeline", "show_expanded_events", "collation"}

refused = functools.partial(refusals.refused, ErrorCategory.INVALID_REQUEST)


def made(**options):
    return MongoOptions(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 7.5) for name in FIELDS if name != "comment"),
        *((name, object()) for name in FIELDS if name != "comment"),
        ("full_document", True),
        ("resume_after", "82AB"),
        ("start_after", [("_data", "82AB")]),
        ("start_at_operation_time", 1_763_634_171),
        ("max_await_time_ms", True),
        ("max_await_time_ms", 0),
        ("batch_size", "10"),
        ("batch_size", -1),
        ("collation", "de"),
        ("show_expanded_events", 1),
        ("pipeline", "[]"),
        ("pipeline", {"$match": {}}),
        ("pipeline", None),
        ("after_invalidate", None),
        ("after_invalidate", "stay"),
        ("allow_missing", None),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(name, value):
    with refused(f"MongoOptions.{name}"):
        made(**{name: value})


@pytest.mark.parametrize("stage", ["$match", None, ["$match"]])
def test_a_stage_is_a_mapping_and_the_error_says_which_is_not(stage):
    with refused("MongoOptions.pipeline[1]", type(stage).__name__):
        made(pipeline=[{"$match": {}}, stage])


@pytest.mark.parametrize("name", FIELDS)
def test_options_are_values_and_some_are_of_a_token(name):
    one, other = (made(**{name: GOOD[name]}) for _ in range(2))
    assert one == other != made()
    assert hash(one) == hash(other)
    assert one.position_digest() == other.position_digest()
    assert bool(one.position_digest()) is (name in POSITIONS)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [True])],
    ids=["truth", "float", "falsehood", "order", "inside"],
)
def test_what_the_server_tells_apart_is_not_equal(one, other):
    """A client uses one stream for equal requests, so a request could get the filter of another request."""
    assert one == other
    assert made(pipeline=[{"$match": {"a": one}}]) != made(pipeline=[{"$match": {"a": other}}])


@pytest.mark.parametrize("name", ["resume_after", "start_after", "collation", "pipeline"])
def test_a_mapping_is_a_copy_and_no_token_is_shown(name):
    value = {"a": {"b": [1], "c": "82AB"}}
    options = made(**{name: [value] if name == "pipeline" else value})
    value["a"]["b"].append(2)
    kept = getattr(options, name)
    assert (kept[0] if name == "pipeline" else kept) == {"a": {"b": [1], "c": "82AB"}}
    assert not name.endswith("after") or "82AB" not in repr(options)


def test_the_order_of_stages_counts():
    one, other = {"$match": {"a": 1}}, {"$match": {"b": 1}}
    digests = {made(pipeline=stages).position_digest() for stages in ([one, other], [other, one])}
    assert len(digests) == 2
