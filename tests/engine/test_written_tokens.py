"""Tests that a process does not parse its own tokens again, and that this does not change their meaning."""

import json
import pickle

import attrs
import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.explore.world import RULES, RULES_OF, ListingKind
from multiclouddb_spi import ProviderFault, consumer_opener
from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import Entry, entry_to_json
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.reading.page_builder import PageBuilder


@pytest.fixture
def parsed(monkeypatch):
    """Provide the list of tokens that the engine has parsed."""
    tokens = []

    def recorded(token):
        tokens.append(token)
        return decode_token(token)

    monkeypatch.setattr(consumer_opener, "decode_token", recorded)
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


def test_a_state_that_differs_from_its_token_is_found(bench):
    """In tests, a check compares them at each call; otherwise, no test would notice an incomplete token."""
    token = bench.page(size=7).continuation_token
    (consumer,) = bench.engine._calls.kept.consumers._kept.values()
    consumer.state.failed_last(consumer.state.active()[0].partition_id)
    bench.refused(ErrorCategory.PERMANENT_FAILURE, token, match="a token differs from the lineage")


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
        rules = RULES_OF[ListingKind.LISTED]
        made = Lineage([Entry.read("p", [1]), Entry.read("q", [1])], rules)
        before = json.dumps(made.to_json())
        change(made)
        told = made.to_json()
        fresh = Lineage.from_json(json.loads(json.dumps(told)), rules)
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
        assert entry_to_json(moved) == ["p", [2]]


def test_the_kit_compares_each_kept_state_with_its_token():
    assert Consumers.checks
