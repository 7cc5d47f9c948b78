"""Tests that a text which is no UTF-8 is told, whatever azure-cosmos is told to make of it."""

import attrs
import pytest

from multiclouddb_api import (
    ChangeEvent,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbKey,
    NotKnown,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos_emulator import service

from .world import ADDRESS, READ, seconds

pytestmark = pytest.mark.usefixtures("hasty", "cut")

LENIENT = "AZURE_COSMOS_CHARSET_DECODER_ERROR_ACTION_ON_MALFORMED_INPUT"
"""With `REPLACE` or `IGNORE` as its value, azure-cosmos decodes such a text, and so changes it.

It is for Azure/azure-sdk-for-python PR 47008 (2026-05), in which one such text made its page unreadable.
"""


@pytest.fixture
def cut(monkeypatch):
    """Make the server answer with a byte that is no UTF-8 in place of a letter."""

    def cutting(answer):
        def call(request):
            reply = answer(request)
            return attrs.evolve(reply, body=reply.body.replace(b"CUT", b"C\xffT"))

        return call

    calls = {name: cutting(service._CALLS[name]) for name in (READ, "ReadItem", "QueryItems")}
    monkeypatch.setattr(service, "_CALLS", {**service._CALLS, **calls})


@pytest.mark.parametrize("lenient", ["", "REPLACE", "IGNORE"])
@pytest.mark.parametrize("whose", ["library", "application"])
def test_a_look_up_says_that_it_does_not_know(lone, put_text, monkeypatch, whose, lenient):
    monkeypatch.setenv(LENIENT, lenient)
    keys = []
    for item_id in ("a", "a#", "b", "b#"):
        put_text(lone, f'{{"id": "{item_id}", "pk": "a", "x": "{"CUT" if "b" in item_id else ""}"}}')
        keys.append(MulticloudDbKey({"pk": "a", "id": item_id}, 1))
    with connect(lone.config(), native_client=lone.native if whose == "application" else None) as client:
        found = client.lookup(ADDRESS, keys, options=seconds(5))
    assert [type(found[key]) for key in keys] == [ChangeEvent, ChangeEvent, NotKnown, NotKnown]


@pytest.mark.parametrize("lenient", ["REPLACE", "IGNORE"])
@pytest.mark.parametrize("options", [CosmosOptions(), CosmosOptions(mode="latest")], ids=["all", "latest"])
def test_a_page_of_an_application_s_own_client_is_not_changed(lone, monkeypatch, options, lenient):
    monkeypatch.setenv(LENIENT, lenient)
    with connect(lone.config(), native_client=lone.native) as client:
        consumer = lone.consumer(client=client, provider_options=options)
        lone.put("a")
        lone.put("b", x="CUT", _lsn=1)
        lone.put("c")
        told = lambda: [consumer.read(seconds(2)) for _ in range(9)]  # noqa: E731
        error = refusal(ErrorCategory.PROVIDER_ERROR, told, "no UTF-8")
        consumer.start = FromContinuationToken(error.detail.skip_token)
        consumer.until_idle()
    assert consumer.markers == [1, 3]
