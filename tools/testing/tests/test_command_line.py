"""Tests that the helpers for tests of the command line raise errors when they should."""

import threading
from datetime import UTC, datetime
from subprocess import CompletedProcess

import pytest

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbKey, ResourceAddress
from multiclouddb_conformance.waiting import wait_until
from testing.command_line import Tail, Writer, assert_refused, run, said

LINE = "error: [NOT_FOUND] there is no table 'orders'; create it first\n"


def event(event_id, key):
    return ChangeEvent(
        event_id=event_id,
        key=MulticloudDbKey({"id": key}),
        type=ChangeType.DELETE,
        timestamp=datetime(2026, 1, 31, tzinfo=UTC),
        new_item_state=None,
        old_item_state=None,
        order_key=event_id,
        by_expiry=None,
        backfilled=False,
        address=ResourceAddress(collection="orders"),
        partition_id="p0",
    )


class TestRun:
    def test_a_command_that_fails_is_returned(self):
        ran = run("no-such-command", COLUMNS="200")
        assert ran.returncode != 0
        assert "no-such-command" in ran.stderr

    def test_only_one_that_ends_well_says_something(self):
        assert "partitions" in said("--help")
        with pytest.raises(AssertionError):
            said("no-such-command")


class TestAssertRefused:
    def check(self, code=4, out="", err=LINE, words=("orders", "create")):
        assert_refused(CompletedProcess([], code, out, err), 4, "NOT_FOUND", *words, hidden=["s3cret"])

    def test_takes_one_line_besides_warnings(self):
        self.check()
        self.check(err=f"warning: a retry\n{LINE}")

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param({"code": 1}, id="another code"),
            pytest.param({"out": "an event\n"}, id="output"),
            pytest.param({"err": LINE.replace("NOT_FOUND", "CONFLICT")}, id="another category"),
            pytest.param({"words": ("no-such-word",)}, id="a word is missing"),
            pytest.param({"err": f"warning: of s3cret\n{LINE}"}, id="a secret"),
        ],
    )
    def test_refuses_the_rest(self, wrong):
        with pytest.raises(AssertionError):
            self.check(**wrong)

    @pytest.mark.parametrize("lines", ["", LINE * 2, f"Traceback:\n{LINE}"], ids=["none", "two", "traceback"])
    def test_refuses_any_number_of_lines_but_one(self, lines):
        with pytest.raises(ValueError, match="unpack"):
            self.check(err=lines)


class TestTail:
    def test_an_event_that_comes_again_counts_once_and_another_id_of_it_twice(self):
        tail = Tail("url", "orders", "--checkpoint", "position")
        tail.seen = [event("1", "a"), event("2", "b"), event("1", "a")]
        assert tail.keys() == ["a", "b"]
        tail.seen.append(event("3", "a"))
        assert tail.keys() == ["a", "b", "a"]

    def test_a_process_that_ends_by_itself_is_an_error(self, tmp_path):
        tail = Tail("no-such-scheme://", "orders", "--checkpoint", tmp_path / "position")
        with pytest.raises(AssertionError), tail.running() as came:
            wait_until(lambda: not any(each.name == "reader" for each in threading.enumerate()))
        assert came.empty()


class TestWriter:
    def test_writes_until_it_is_left_and_waits_while_it_is_held(self):
        put = []
        with Writer(put.append, pause=0.001) as writer:
            wait_until(lambda: len(put) > 5)
            with writer.between:
                held = list(put)
                assert writer.written == held
            wait_until(lambda: len(put) > len(held))
        assert writer.written == put
        assert not any(each.name == "writer" for each in threading.enumerate())
