"""Tests that a change stream which excludes changes is read only if the configuration names it.

Google's emulator excludes changes, but does not list these options in its information schema, so a client
cannot see them. Therefore the refusals are tested on the scripted server, which lists the options for
excluded changes in the same way as the service.
"""

import pytest

from multiclouddb_api import Beginning, ClientConfig, ErrorCategory, connect
from multiclouddb_conformance.open_client import open_client
from multiclouddb_spanner.provider import PLUGIN

from .servers.emulator import STILL
from .test_provider import drained, refused
from .test_scripted_attacks import feed

LEFT_OUT = {
    "exclude_insert": ["UPDATE", "DELETE"],
    "exclude_update": ["CREATE", "DELETE"],
    "exclude_delete": ["CREATE", "UPDATE"],
    "exclude_ttl_deletes": ["CREATE", "UPDATE", "DELETE"],
}
OPTIONS = pytest.mark.parametrize("option", LEFT_OUT)


@OPTIONS
@pytest.mark.emulator(*STILL)
def test_on_google_s_emulator_it_leaves_out_what_it_says(still, table, here, option):
    table.ddl(f"ALTER CHANGE STREAM items_stream SET OPTIONS ({option} = true)")
    table.insert(["a", 1, "t"])
    table.put(["a", 2, "t"])
    table.delete("a")
    with connect(f"{still.url}&change_stream=items_stream") as client:
        events = drained(client, here, Beginning())
    assert [event.type.value for event in events] == LEFT_OUT[option]


@OPTIONS
def test_it_is_named_or_refused(option):
    with feed() as items:
        items.server.execute(
            items.scripted.database, f"ALTER CHANGE STREAM items_stream SET OPTIONS ({option} = true)"
        )
        items.put(("a", 1))
        items.put(("a", 2))
        items.scripted.write("items", ("a",), kind="delete", names=("id",))
        message = refused(ErrorCategory.INVALID_REQUEST, items.page, Beginning())
        assert option in message
        assert "items_stream" in message
        config = ClientConfig("spanner", {"url": f"{items.scripted.url}&change_stream=items_stream"})
        with open_client(PLUGIN, config) as client:
            events = items.page(Beginning(), client=client).events
        assert [event.type.value for event in events] == LEFT_OUT[option]


def test_an_option_that_is_off_leaves_nothing_out():
    with feed() as items:
        items.server.execute(
            items.scripted.database,
            "ALTER CHANGE STREAM items_stream SET OPTIONS (exclude_ttl_deletes = false)",
        )
        items.put(("a", 1))
        assert len(items.page(Beginning()).events) == 1
