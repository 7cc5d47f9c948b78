"""Tests what the rows about MongoDB share: the server's core, equal reads on both sides, and correct
counts.
"""

import os
from inspect import getsource

import attrs
import pytest

from benchmarks.mongo import ADDRESS, backlog, document
from benchmarks.row import Done
from benchmarks.rows.mongo import (
    _by_hand,
    _counted,
    _through_arrow,
    _through_the_client,
    dict_loop,
)
from multiclouddb_api import ChangeEvent, ChangeFeedRequest, FromContinuationToken, connect

SIZE = 120


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
        for ours in (_through_the_client(changes), _through_arrow(changes)()):
            assert (ours.count, list(ours.ids)) == (SIZE, by_hand.ids)

    def test_a_dict_has_the_fields_of_an_event(self):
        """Check that the loop does not become faster by leaving out a field."""
        fields = {field.name for field in attrs.fields(ChangeEvent)} - {"native"}
        assert fields <= set(getsource(dict_loop).replace('"', " ").split())

    @pytest.mark.parametrize("ids", [["a"] * SIZE, [str(number) for number in range(SIZE - 1)]])
    def test_one_too_few_or_twice_breaks_a_row(self, changes, ids):
        with pytest.raises(ValueError, match=f"of {SIZE}"):
            _counted(changes, Done(len(ids), ids))
