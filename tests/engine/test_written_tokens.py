"""Tests that a process does not parse its own tokens again, and that this does not change their meaning."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from multiclouddb_api import EntireCollection, ErrorCategory, MulticloudDbError, PhysicalPartition
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import ServiceBehaviour
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import ProviderFault, session_opener
from multiclouddb_spi.continuation import state as written_module
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
    bench.connect()
    bench.fill(60)
    return bench


def test_a_consumer_that_reads_on_parses_nothing(bench, parsed):
    events, _ = bench.drain(size=7)
    assert sorted(event.event_id for event in events) == sorted(bench.written())
    assert parsed == []


def test_a_token_that_is_used_again_delivers_the_same(bench, parsed):
    token = bench.page(size=7).continuation_token
    once = bench.page(token, size=7)
    assert parsed == []
    again = bench.page(token, size=7)
    assert parsed == [token]
    assert again.events == once.events
    assert decode_token(again.continuation_token).state == decode_token(once.continuation_token).state


def test_another_process_continues_from_it(bench, parsed):
    token = bench.page(size=7).continuation_token
    once = bench.page(token, size=7)
    bench.connect()
    assert bench.page(token, size=7).events == once.events
    assert parsed == [token]


def test_partitions_that_wait_for_each_other_are_refused(make_bench, monkeypatch):
    """The service names each of two children as a parent of the other child."""
    bench = make_bench(1)
    bench.connect()
    token = bench.page().continuation_token
    first, second = bench.sim.split("p0")
    other, parents = {first: second, second: first}, View.parents

    def circular(self, partition):
        known = parents(self, partition)
        return (*known, other[partition.id]) if partition.id in other else known

    monkeypatch.setattr(View, "parents", circular)
    token = bench.page(token).continuation_token
    with pytest.raises(MulticloudDbError, match="wait for each other") as refused:
        bench.page(token)
    assert refused.value.category is ErrorCategory.INVALID_REQUEST


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


def test_it_is_still_refused_where_it_does_not_belong(bench):
    token = bench.page(size=7).continuation_token
    scope = PhysicalPartition(bench.partitions()[0])
    bench.refused(ErrorCategory.INVALID_REQUEST, token, match="scope", scope=scope)
    assert bench.page(token, scope=EntireCollection()).events


def test_a_recreated_resource_is_still_refused(bench):
    token = bench.page(size=7).continuation_token
    bench.sim.recreate()
    bench.engine._feeds.close()
    bench.refused(ErrorCategory.INVALID_REQUEST, token, match="recreated")


@pytest.mark.parametrize("listing", list(ServiceBehaviour().listing.__class__))
def test_it_means_the_same_while_children_wait(make_bench, listing):
    """After splits and merges, reading from the kept lineage is the same as reading from the token's text."""
    bench = make_bench(2, behaviour=ServiceBehaviour(listing=listing))
    kept, other = bench.connect(), bench.connect()
    bench.fill(10)
    one, two = bench.sim.split("p0")
    bench.fill(10)
    bench.sim.merge(one, two)
    bench.fill(10)
    token, events = bench.page(size=1, engine=kept).continuation_token, 1
    for _ in range(60):
        left, _ = bench.drain(token, engine=other)
        assert events + len(left) == 30
        page = bench.page(token, size=3, engine=kept)
        token, events = page.continuation_token, events + len(page.events)
        if page.idle:
            break
    assert events == 30


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

    def test_a_token_is_given_once(self):
        tokens = WrittenTokens()
        tokens.keep(*self.made(1))
        assert tokens.take("token-1").state.cursor("p0") == 1
        assert tokens.take("token-1") is None

    def test_the_oldest_go_first(self):
        tokens = WrittenTokens()
        for number in range(100):
            tokens.keep(*self.made(number))
        assert [number for number in range(100) if tokens.take(f"token-{number}")] == list(range(36, 100))

    def test_their_partitions_are_limited(self, monkeypatch):
        monkeypatch.setattr(written_module, "_MOST_ENTRIES", 10)
        tokens = WrittenTokens()
        for number in range(5):
            tokens.keep(*self.made(number, partitions=4))
        assert [number for number in range(5) if tokens.take(f"token-{number}")] == [3, 4]
        tokens.keep(*self.made(9, partitions=11))
        assert tokens.take("token-9") is None
        tokens.keep(*self.made(1, partitions=10))
        assert tokens.take("token-1")

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
