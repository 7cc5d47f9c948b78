"""Tests the options that only MongoDB has. The options are typed and frozen, and are stored in the token if
needed."""

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


class TestFields:
    @pytest.mark.parametrize("name", [name for name in FIELDS if name != "comment"])
    @pytest.mark.parametrize("value", [7.5, b"x", object(), [1]], ids=["float", "bytes", "object", "list"])
    def test_one_of_the_wrong_type_is_refused_by_its_name(self, name, value):
        with refused(f"MongoOptions.{name}"):
            MongoOptions(**{name: value})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("full_document", True),
            ("resume_after", "82AB"),
            ("start_after", [("_data", "82AB")]),
            ("start_at_operation_time", 1_763_634_171),
            ("max_await_time_ms", True),
            ("batch_size", "10"),
            ("collation", "de"),
            ("show_expanded_events", 1),
            ("pipeline", "[]"),
            ("pipeline", {"$match": {}}),
            ("pipeline", None),
            ("after_invalidate", None),
            ("allow_missing", None),
        ],
    )
    def test_what_is_nearly_right_is_refused_too(self, name, value):
        with refused(f"MongoOptions.{name}"):
            MongoOptions(**{name: value})

    @pytest.mark.parametrize("name", ["max_await_time_ms", "batch_size"])
    @pytest.mark.parametrize("value", [0, -1])
    def test_a_number_is_at_least_one(self, name, value):
        with refused(f"MongoOptions.{name}", "1 or more"):
            MongoOptions(**{name: value})

    @pytest.mark.parametrize("stage", ["$match", None, 1, ["$match"]])
    def test_a_stage_is_a_mapping_and_the_error_says_which_is_not(self, stage):
        with refused("MongoOptions.pipeline[1]", type(stage).__name__):
            MongoOptions(pipeline=[{"$match": {}}, stage])


class TestValue:
    """Options are values: they can be compared and hashed, and they are frozen."""

    @pytest.mark.parametrize("name", FIELDS)
    def test_equal_ones_hash_equal(self, name):
        one, other = (MongoOptions(**{name: GOOD[name]}) for _ in range(2))
        assert one == other
        assert hash(one) == hash(other)
        assert one != MongoOptions()

    @pytest.mark.parametrize(
        ("one", "other"),
        [(1, True), (1, 1.0), (0, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [True])],
        ids=["truth", "float", "falsehood", "order", "inside"],
    )
    def test_what_the_server_tells_apart_is_not_equal(self, one, other):
        """Options that are different for the server must not be equal."""
        # A client uses one stream for equal requests, so a request could get the filter of another request.
        assert one == other
        assert MongoOptions(pipeline=[{"$match": {"a": one}}]) != MongoOptions(
            pipeline=[{"$match": {"a": other}}]
        )

    @pytest.mark.parametrize("name", ["resume_after", "start_after", "collation"])
    def test_a_mapping_is_a_copy(self, name):
        given_ = {"a": {"b": [1]}}
        options = MongoOptions(**{name: given_})
        given_["a"]["b"].append(2)
        assert getattr(options, name) == {"a": {"b": [1]}}

    def test_a_pipeline_is_a_copy(self):
        stages = [{"$match": {"a": [1]}}]
        options = MongoOptions(pipeline=stages)
        stages[0]["$match"]["a"].append(2)
        stages.append({})
        assert options.pipeline == ({"$match": {"a": [1]}},)

    @pytest.mark.parametrize("name", ["resume_after", "start_after"])
    def test_a_token_is_not_shown(self, name):
        assert "82AB" not in repr(MongoOptions(**{name: GOOD[name]}))


class TestDigest:
    """A token of one stream cannot be used for another."""

    def test_none_for_the_defaults(self):
        assert MongoOptions().position_digest() == ""

    @pytest.mark.parametrize("name", sorted(POSITIONS))
    def test_it_tells_streams_of_other_positions_apart(self, name):
        digest = MongoOptions(**{name: GOOD[name]}).position_digest()
        assert digest
        assert digest == MongoOptions(**{name: GOOD[name]}).position_digest()

    @pytest.mark.parametrize("name", sorted(set(FIELDS) - POSITIONS))
    def test_whatever_else_may_change_between_two_pages(self, name):
        assert MongoOptions(**{name: GOOD[name]}).position_digest() == ""

    def test_the_order_of_stages_counts(self):
        one, other = {"$match": {"a": 1}}, {"$match": {"b": 1}}
        assert (
            MongoOptions(pipeline=[one, other]).position_digest()
            != MongoOptions(pipeline=[other, one]).position_digest()
        )
