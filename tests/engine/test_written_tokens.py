"""Tests that a process does not parse its own tokens again, and that this does not change their meaning."""

import json
import pickle

import attrs
import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_spi import ProviderFault, session_opener
from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import Entry, entry_to_json
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import WrittenTokens
from multiclouddb_spi.continuation.token import Envelope, decode_token
from multiclouddb_spi.reading.page_builder import PageBuilder


@pytest.fixture
def parsed(monkeypatch):
    """Provide the list of tokens that the engine has parsed."""
    tokens = []

    def recorded(token):
        tokens.append(token)
        return decode_token(token)

    monkeypatch.setattr(session_opener, "decode_token", recorded)
    return tokens


@pytest.fixture
def bench(make_bench):
    bench = make_bench(3)
    bench.fill(60)
    return bench


def test_a_consumer_that_reads_on_parses_nothing(bench, parsed):
    events, _ = bench.drain(size=7)
    assert sorted(event.event_id for event in events) == sorted(bench.written())
    assert parsed == []


def test_another_process_continues_from_it(bench, parsed):
    token = bench.page(size=7).continuation_token
    once = bench.page(token, size=7)
    bench.connect()
    assert bench.page(token, size=7).events == once.events
    assert parsed == [token]


def test_a_call_that_fails_after_it_has_read_leaves_its_token_as_it_was(bench, monkeypatch):
    """The call changes the kept lineage in place, so a later call with the same token must not use it."""
    first = bench.page(size=7)

    def fails(*_):
        raise ProviderFault.of(ErrorCategory.PERMANENT_FAILURE, "no page")

    with monkeypatch.context() as patched:
        patched.setattr(PageBuilder, "reading", fails)
        for _ in range(3):
            bench.refused(ErrorCategory.PERMANENT_FAILURE, first.continuation_token, match="no page")
    rest, _ = bench.drain(first.continuation_token, size=7)
    assert sorted(event.event_id for event in [*first.events, *rest]) == sorted(bench.written())


class TestWhatIsKept:
    @staticmethod
    def made(number, partitions=1):
        lineage = Lineage([Entry.read(f"p{each}", number) for each in range(partitions)], RULES)
        envelope = Envelope("p", None, None, "collection", "", None)
        return f"token-{number}", envelope, lineage

    @pytest.fixture(autouse=True)
    def no_checks(self, monkeypatch):
        """Turn off the checks, because these tokens are not real."""
        monkeypatch.setattr(WrittenTokens, "checks", False)

    def test_the_oldest_go_first(self):
        tokens = WrittenTokens()
        for number in range(100):
            tokens.keep(*self.made(number))
        assert [number for number in range(100) if tokens.take(f"token-{number}")] == list(range(36, 100))

    def test_their_partitions_are_bounded(self, monkeypatch):
        monkeypatch.setattr("multiclouddb_spi.continuation.state._MOST_ENTRIES", 10)
        tokens = WrittenTokens()
        for number in range(20):
            tokens.keep(*self.made(number, partitions=4))
        assert [number for number in range(20) if tokens.take(f"token-{number}")] == [18, 19]

    def test_a_lineage_that_differs_from_its_token_is_found(self, monkeypatch, bench):
        """In tests, a check compares the lineage with its token; otherwise, no test would notice an
        incomplete token.
        """
        monkeypatch.setattr(WrittenTokens, "checks", True)
        token = bench.page(size=7).continuation_token
        envelope = decode_token(token)
        tokens = WrittenTokens()
        lineage = Lineage.from_json(envelope.state, RULES)
        tokens.keep(token, envelope, lineage)
        assert tokens.take(token)
        lineage.failed_last("p0")
        tokens.keep(token, envelope, lineage)
        with pytest.raises(AssertionError, match="differs from"):
            tokens.take(token)


class TestEncoded:
    """An entry keeps what it encodes to; what is written is never of an older state."""

    CHANGES = (
        ("a position", lambda made: made.took("p", [2])),
        ("the same position as another value", lambda made: made.took("p", [1])),
        ("a failure", lambda made: made.failed_last("p")),
        ("an end", lambda made: made.ended("p", [], complete=False)),
        ("a child", lambda made: made.ended("p", [Child("c", ("p",), 3)], complete=False)),
        (
            "an end that is final",
            lambda made: (made.ended("p", [], complete=False), made.close(["p"], over=False)),
        ),
        ("a parent of two", lambda made: made.ended("p", [Child("c", ("p", "q"), 3)], complete=True)),
        ("the queue", lambda made: made.rotate(["p"])),
    )

    @pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])
    def test_each_change_is_in_the_next_token(self, change):
        made = Lineage([Entry.read("p", [1]), Entry.read("q", [1])], RULES)
        before = json.dumps(made.to_json())
        change(made)
        told = made.to_json()
        fresh = Lineage.from_json(json.loads(json.dumps(told)), RULES)
        assert list(fresh) == list(made), before

    def test_a_failure_is_cleared_although_the_position_stays(self):
        made = Lineage([Entry.read("p", [1])], RULES)
        kept = made.at("p")
        made.took("p", kept.cursor)
        assert made.at("p") is kept
        made.failed_last("p")
        assert made.to_json() == {"p": [["p", [1], 2]]}
        made.took("p", kept.cursor)
        assert made.to_json() == {"p": [["p", [1]]]}

    def test_entries_stay_equal_whether_they_were_written_or_not(self):
        written, other = Entry.read("p", [1]), Entry.read("p", [1])
        assert entry_to_json(written) is entry_to_json(written)
        assert (written, repr(written)) == (other, repr(other))
        assert pickle.loads(pickle.dumps(written)) == other
        moved = attrs.evolve(written, said=([2],))
        assert (moved.json, entry_to_json(moved)) == (None, ["p", [2]])


def test_the_kit_compares_each_kept_lineage_with_its_token():
    assert WrittenTokens.checks
