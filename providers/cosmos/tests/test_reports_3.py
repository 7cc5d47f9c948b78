"""Tries what was reported and announced in 2026, after `test_reports_2`. Each test names its source."""

import contextlib
from types import SimpleNamespace

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import client as client_room
from multiclouddb_cosmos_emulator import Fail

from .test_keys import drained
from .test_reports import BOTH, LATEST, ids
from .world import ADDRESS, DATABASE, NAME, READ

pytestmark = pytest.mark.usefixtures("hasty")
A, ODD = (MulticloudDbKey({"pk": "a", "id": item_id}, 1) for item_id in ("a", "a#"))
LATE = b'{"_rid":"","Documents":[{"id":"c","pk":"c","_lsn":1,"_lsn":2,"_lsn":3,"_lsn":4,"_lsn":5}]}'


@pytest.mark.parametrize(
    "fault", [(429, 3200), (503, 0), (500, 0), (408, 0), (410, 1002), (404, 1002)], ids=str
)
@pytest.mark.parametrize("whose", ["library", "application"])
def test_a_query_that_is_refused_once_proves_no_absence(lone, put_text, whose, fault):
    """Azure/azure-sdk-for-python issues 35021, 38984: a query that was throttled returned nothing."""
    put_text(lone, '{"id": "a#", "pk": "a"}')
    with connect(lone.config(), native_client=lone.native if whose == "application" else None) as client:
        client.lookup(ADDRESS, [A])
        lone.server.faults.add(Fail(*fault, retry_after=0.01), "QueryItems")
        # Of what an application's own client gives up, the error is told.
        with contextlib.suppress(*[MulticloudDbError] * (whose == "application")):
            assert client.lookup(ADDRESS, [ODD])[ODD].key == ODD


def test_of_several_answers_to_one_page_the_one_that_was_taken_is_read(lone, monkeypatch):
    """The availability strategy of azure-cosmos sends a request to a second region if the first is slow."""
    lone.put("a", "b", _lsn=7)
    made = client_room.end_if_throttled

    def hedging(deadline, seen=None):
        hook = made(deadline, seen)

        def call(response):
            hook(response)
            late = SimpleNamespace(status_code=200, headers={"etag": '"99"'}, body=lambda: LATE)
            if response.http_request.url.endswith("/docs/"):
                hook(SimpleNamespace(http_request=response.http_request, http_response=late))

        return call

    monkeypatch.setattr(client_room, "end_if_throttled", hedging)
    with connect(lone.config(), native_client=lone.native) as client:
        request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
        events = list(client.iterate_changes(request, until_idle=True))
    assert ids(events) == ["a", "b"]
    assert {event.new_item_state["_lsn"] for event in events} == {7}


@BOTH
def test_splits_of_two_generations_while_nobody_reads(lone, options):
    """Azure/azure-cosmos-dotnet-v3 PR 6079 (2026-09): then a reader forgot its position, and began anew."""
    consumer = lone.consumer(Beginning(), provider_options=options, max_page_size=3)
    written = lone.fill(10)
    consumer.read()
    lone.split()
    written += lone.fill(10)
    for each in [each["id"] for each in lone.partitions()]:
        lone.split(each)
    written += lone.fill(10)
    consumer.restart()
    drained(consumer)
    assert sorted(consumer.markers) == sorted(written)


@pytest.mark.parametrize("policy", [None, {"isPolicyEnabled": False}, {"isPolicyEnabled": True}], ids=str)
@pytest.mark.parametrize("refused", [False, True], ids=["unmasked", "masked"])
def test_a_look_up_returns_no_masked_values(lone, policy, refused):
    """Microsoft Learn, Dynamic data masking (2026-04): the feed is refused to whom values are masked for."""
    lone.put("a")
    client, key = lone.client(), MulticloudDbKey({"pk": "a", "id": "a"}, 1)
    assert client.lookup(ADDRESS, [key])[key] is not None
    with lone.server._lock:
        if policy is not None:
            lone.server._container(DATABASE, NAME).properties["dataMaskingPolicy"] = policy
    if refused:
        lone.server.faults.add(Fail(403), READ, times=None)
    look = lambda: client.lookup(ADDRESS, [key])[key]  # noqa: E731
    if refused and policy and policy["isPolicyEnabled"]:
        refusal(ErrorCategory.AUTHORIZATION_FAILED, look, "403")
    else:
        assert look() is not None
