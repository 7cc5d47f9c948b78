"""Tests that a process does not parse its own tokens again, and that this does not change their meaning."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_spi import ProviderFault, session_opener
from multiclouddb_spi.continuation.entry import Entry
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


def test_two_calls_with_one_token_change_nothing_for_each_other(bench):
    """If several calls use the same token, only the first call gets the lineage that was kept in memory."""
    token = bench.page(size=7).continuation_token
    with ThreadPoolExecutor(4) as pool:
        pages = list(pool.map(lambda _: bench.page(token, size=7), range(12)))
    for page in pages:
        rest, _ = bench.drain(page.continuation_token, size=7)
        assert len({event.event_id for event in [*page.events, *rest]}) == len(bench.written()) - 7


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


def test_the_kit_compares_each_kept_lineage_with_its_token():
    assert WrittenTokens.checks
