"""The conformance suite, with replacements for the tests in which MongoDB behaves differently."""

import pytest

from multiclouddb_api import ChangeType, NewItemStateMode
from multiclouddb_conformance import us8
from multiclouddb_conformance.harness import CollectionKind
from multiclouddb_conformance.us8 import *  # noqa: F403

REQUIRE = NewItemStateMode.REQUIRE


class TestImages(us8.TestImages):
    """A collection keeps the documents of its changes only if it is configured to do so."""

    def test_require_gives_the_full_document(self, make_collection):
        images = make_collection("images", CollectionKind.OLD_IMAGES)
        images.put("a", n=1)
        images.put("a", n=2, text="x")
        images.put("a", n=3)
        events = images.drain(images.begin, new_item_state_mode=REQUIRE)
        fields = [{"n": 1}, {"n": 2, "text": "x"}, {"n": 3}]
        assert [event.new_item_state for event in events] == [
            images.harness.document("a", each) for each in fields
        ]


class TestPropagation(us8.TestPropagation):
    """An event does not say whether a document was deleted because it expired."""

    test_a_delete_by_the_service_says_that_it_is_an_expiry = None

    @pytest.mark.needs("expire", "alone")
    def test_a_delete_by_the_service_does_not_say_that_it_is_an_expiry(self, collection):
        collection.put("a", n=1)
        collection.harness.expire(collection.address, "a")
        *_, event = collection.read(collection.begin, 3)
        assert (event.type, event.by_expiry) == (ChangeType.DELETE, None)


class TestTrimmedOnTheWay(us8.TestTrimmedOnTheWay):
    """Changes that the driver has already fetched are not lost when the oplog is truncated."""

    @pytest.fixture(autouse=True)
    def _small_answers(self, monkeypatch):
        monkeypatch.setattr("multiclouddb_mongo.reader._LEAST_BATCH", 3)
