"""Tests what the rows about MongoDB share: the server's core, equal reads on both sides, and correct
counts.
"""

import os
from functools import partial
from inspect import getsource

import attrs
import pytest

from benchmarks.mongo import ADDRESS, backlog, document
from benchmarks.row import Done
from benchmarks.rows import mongo as rows
from benchmarks.rows.mongo import (
    _by_hand,
    _counted,
    _through_arrow,
    _through_the_client,
    cursors,
    dict_loop,
    empty_loop,
    stream_a_page,
)
from multiclouddb_api import ChangeEvent, ChangeFeedRequest, FromContinuationToken, connect
from multiclouddb_spi.fetching.consumers import Consumers

SIZE = 120
CALLS = 2 * SIZE // 10


def cores(pid=0):
    """Return the cores on which a process may run; empty if the system does not report them."""
    return sorted(getattr(os, "sched_getaffinity", lambda _: ())(pid))


ALL_CORES = cores()


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    with backlog(tmp_path_factory.mktemp("server"), SIZE) as found:
        yield found


class TestServer:
    def test_it_has_a_core_of_its_own(self, changes):
        with changes.client() as client:
            pid = client.admin.command("serverStatus")["pid"]
        assert cores(pid) == ALL_CORES[-1:]
        assert cores() == ALL_CORES

    def test_a_document_has_300_bytes(self):
        from bson import encode

        assert len(document(39_999)) == 9
        assert len(encode(document(39_999))) == pytest.approx(300, abs=5)

    def test_each_document_is_one_event_behind_the_token(self, changes):
        with connect(changes.config) as client:
            page = client.read_changes(ChangeFeedRequest(ADDRESS, FromContinuationToken(changes.token)))
        assert [event.new_item_state for event in page.events] == [document(number) for number in range(SIZE)]


class TestSides:
    def test_all_read_the_same(self, changes):
        by_hand = _by_hand(changes, dict_loop, SIZE)
        assert len(set(by_hand.ids)) == by_hand.count == SIZE
        for ours in (
            _through_the_client(changes),
            _through_the_client(changes, 7),
            _through_arrow(changes)(),
        ):
            assert (ours.count, list(ours.ids)) == (SIZE, by_hand.ids)
        assert _by_hand(changes, empty_loop, SIZE) == Done(SIZE)

    def test_a_dict_has_the_fields_of_an_event(self):
        """Check that the loop does not become faster by leaving out a field."""
        fields = {field.name for field in attrs.fields(ChangeEvent)} - {"native"}
        assert fields <= set(getsource(dict_loop).replace('"', " ").split())

    @pytest.mark.parametrize("ids", [["a"] * SIZE, [str(number) for number in range(SIZE - 1)]])
    def test_one_too_few_or_twice_breaks_a_row(self, changes, ids):
        with pytest.raises(ValueError, match=f"of {SIZE}"):
            _counted(changes, Done(len(ids), ids))

    def test_the_loop_beside_pages_opens_a_stream_for_each(self, changes):
        before = changes.aggregates()
        assert _by_hand(changes, stream_a_page, SIZE // 10).count == SIZE
        assert changes.aggregates() - before == SIZE // 10


class TestCursors:
    def test_calls_share_one(self, changes):
        done = cursors(changes, CALLS)
        assert (done.count, done.value) == (CALLS, 1)
        assert done.notes["to get the first token"] >= 1

    def test_the_server_counts_what_the_driver_sends(self, changes, monkeypatch):
        from pymongo import MongoClient, monitoring

        class Sent(monitoring.CommandListener):
            def __init__(self):
                self.names = []

            def started(self, event):
                self.names.append(event.command_name)

            def succeeded(self, event):
                """Do nothing: the command was counted when it started."""

            def failed(self, event):
                """Do nothing: the command was counted when it started."""

        sent = Sent()
        with MongoClient(changes.url, event_listeners=[sent]) as native:
            monkeypatch.setattr(rows, "connect", partial(connect, native_client=native))
            assert cursors(changes, CALLS).value == sent.names.count("aggregate") == 1

    def test_a_reader_that_is_not_kept_shows(self, changes, monkeypatch):
        monkeypatch.setattr(Consumers, "take", lambda *_: None)
        assert cursors(changes, CALLS).value == CALLS

    def test_events_that_are_missing_break_the_row(self, changes):
        with pytest.raises(ValueError, match=f"read 40 of {SIZE} events"):
            cursors(changes, 4)
