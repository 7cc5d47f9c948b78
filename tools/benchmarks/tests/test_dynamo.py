"""Tests what the rows about DynamoDB share."""

import multiprocessing
import sys

import pytest

from benchmarks.dynamo import ADDRESS, item, local, scripted
from multiclouddb_api import Beginning, ChangeFeedRequest, connect
from testing.provider_servers import server_module
from testing.servers import ServerUnavailableError


class TestItems:
    def test_an_item_has_300_bytes_as_the_service_counts_them(self):
        from multiclouddb_dynamo_emulator.item import item_size

        assert len(item(23_999)) == 9
        assert item_size(item(23_999)) == pytest.approx(300, abs=5)

    def test_each_item_is_one_event(self):
        with local(30) as table, connect(table.config) as client:
            events = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning())).events
        assert [event.new_item_state["number"] for event in events] == list(range(30))


class TestScripted:
    def test_the_other_process_ends_with_the_row(self):
        with scripted(1) as server:
            assert multiprocessing.active_children()
            assert server.calls("ListStreams") == 0
        assert not multiprocessing.active_children()

    def test_it_ends_when_the_row_breaks(self):
        with pytest.raises(ValueError, match="inside"), scripted(1):
            raise ValueError("inside")
        assert not multiprocessing.active_children()


class TestWithoutNpm:
    def test_the_reason_names_what_to_install(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(ServerUnavailableError, match="there is no npm: install Node"):
            server_module("dynamo", "local").fetch()
