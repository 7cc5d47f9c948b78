"""Tests `lookup` in the engine: partial and strange answers, failures, the time limit, no lookup at all."""

import pytest

from multiclouddb_api import (
    Capability,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    OperationOptions,
)
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.simulation import (
    ServerError,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_spi import AnsweredRows, ProviderFault
from multiclouddb_spi.lookup import look_up as answers


def key(number):
    return MulticloudDbKey({"id": f"k{number}"})


KEYS = [key(number) for number in range(30)]


class Stingy(WrappedProvider):
    """A service that processes one key of each call, the last one."""

    def __init__(self, inner):
        super().__init__(inner)
        self.asked = []

    def look_up(self, feed, keys, deadline):
        self.asked.append(len(keys))
        return super().look_up(feed, keys[-1:], deadline)


@pytest.fixture
def bench(make_bench):
    made = make_bench(2)
    for number in range(0, 30, 2):
        made.sim.write(f"k{number}", {"n": number})
    return made


def look_up(bench, keys=KEYS, timeout=30.0):
    return bench.engine.lookup(bench.sim.address, keys, OperationOptions(timeout), None)


def test_what_the_service_did_not_process_is_asked_again(bench):
    stingy = Stingy(SimulationProvider(bench.sim))
    bench.connect(provider=stingy)
    rows = look_up(bench)
    assert list(rows) == KEYS
    assert [row and row.new_item_state for row in rows.values()] == [
        {"n": number} if number % 2 == 0 else None for number in range(30)
    ]
    assert stingy.asked == list(range(30, 0, -1))


def test_the_time_limit_holds_while_keys_are_left(bench):
    class Empty(WrappedProvider):
        def look_up(self, feed, keys, deadline):
            return {}

    bench.connect(provider=Empty(SimulationProvider(bench.sim)))
    with pytest.raises(MulticloudDbError) as caught:
        look_up(bench, timeout=0.05)
    assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
    assert caught.value.retryable


def answering(bench, answers):
    """Connect to a provider that answers each lookup with the result of a function."""

    class Answering(WrappedProvider):
        def look_up(self, feed, keys, deadline):
            return answers(keys, lambda keys: dict(super(Answering, self).look_up(feed, keys, deadline)))

    bench.connect(provider=Answering(SimulationProvider(bench.sim)))


def test_a_key_that_is_never_answered_is_an_error_and_never_no_row(bench):
    asked = []

    def dropping(keys, inner):
        asked.append(len(keys))
        return inner([each for each in keys if each != KEYS[3]]) if keys != [KEYS[3]] else {}

    answering(bench, dropping)
    with pytest.raises(MulticloudDbError) as caught:
        look_up(bench)
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
    assert "answered for none of the keys" in caught.value.message
    # It is asked again after a pause, and not as often as time allows.
    assert asked.count(1) < 10


def test_an_answer_for_a_key_that_was_not_asked_is_an_error(bench):
    answering(bench, lambda keys, inner: inner(keys) | {key(99): None})
    with pytest.raises(MulticloudDbError, match="a key that was not asked") as caught:
        look_up(bench)
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.PROVIDER_ERROR, False)


def test_what_is_not_known_is_told_as_it_is(bench):
    unknown = NotKnown("its id cannot be asked for")
    answering(bench, lambda keys, inner: inner(keys) | {each: unknown for each in keys if each == KEYS[1]})
    rows = look_up(bench)
    assert list(rows) == KEYS
    assert rows[KEYS[1]] is unknown
    assert rows[KEYS[3]] is None


def test_a_feed_without_the_method_is_refused_by_its_name(bench):
    """Its capabilities promise look-ups; the author of the provider has to write the method."""

    class Unwritten(WrappedProvider):
        def open_feed(self, spec, deadline):
            feed = super().open_feed(spec, deadline)
            del feed.lookup
            return feed

    bench.connect(provider=Unwritten(SimulationProvider(bench.sim)))
    with pytest.raises(
        MulticloudDbError, match=r"WrappedFeed does not say how to read single rows.*`lookup`"
    ) as caught:
        look_up(bench)
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.PERMANENT_FAILURE, False)


class TestAnswers:
    """`multiclouddb_spi.lookup.look_up` matches rows with the keys that were asked."""

    @pytest.fixture
    def rows(self, bench):
        return list(look_up(bench, [KEYS[0], KEYS[2]]).values())

    def answers(self, keys, rows, *, most=30, normal=lambda each: each, **told):
        return answers(keys, most, normal, lambda asked: AnsweredRows(rows, **told))

    def test_a_key_without_a_row_is_none(self, rows):
        assert self.answers(KEYS[:3], rows) == {KEYS[0]: rows[0], KEYS[1]: None, KEYS[2]: rows[1]}

    def test_no_more_keys_are_asked_than_one_request_takes(self, rows):
        assert self.answers(KEYS, rows[:1], most=2) == {KEYS[0]: rows[0], KEYS[1]: None}

    def test_a_key_that_was_not_processed_has_no_answer(self, rows):
        assert self.answers(KEYS[:3], rows[:1], left=KEYS[1:3]) == {KEYS[0]: rows[0]}

    def test_a_refusal_is_no_answer(self):
        def refused(asked):
            raise ServerError("503")

        with pytest.raises(ServerError):
            answers(KEYS, 30, lambda each: each, refused)

    def test_a_row_that_cannot_be_read_is_not_known(self, rows):
        found = self.answers(KEYS[:4], rows, unread=[KEYS[1]])
        assert (found[KEYS[0]], found[KEYS[3]]) == (rows[0], None)
        assert found[KEYS[1]] == NotKnown("the document cannot be read")

    def test_a_row_that_cannot_be_read_may_be_that_of_any_key_without_a_row(self, rows):
        found = self.answers(KEYS[:4], rows, unread=[None])
        assert found[KEYS[1]] == found[KEYS[3]] == NotKnown("the document cannot be read")
        assert (found[KEYS[0]], found[KEYS[2]]) == (rows[0], rows[1])

    def test_two_rows_with_one_key_are_not_known(self, rows):
        found = self.answers(KEYS[:3], [*rows, rows[0], rows[0]])
        assert isinstance(found[KEYS[0]], NotKnown)
        assert found[KEYS[2]] == rows[1]

    def test_a_row_that_matches_no_key_may_be_that_of_any(self, rows):
        found = self.answers([KEYS[0], KEYS[1], KEYS[3]], rows)
        assert found[KEYS[0]] == rows[0]
        assert isinstance(found[KEYS[1]], NotKnown)
        assert isinstance(found[KEYS[3]], NotKnown)

    def test_a_row_too_many_is_an_error(self, rows):
        with pytest.raises(ProviderFault, match="none of those that were asked"):
            self.answers([KEYS[0]], rows)

    def test_equal_keys_in_several_forms_are_asked_once_and_have_the_same_row(self, rows):
        forms, asked = [MulticloudDbKey({"id": f"k0{blanks}"}) for blanks in ("", " ", "  ")], []

        def ask(keys):
            asked.extend(keys)
            return AnsweredRows(rows[:1])

        found = answers(forms, 30, lambda each: MulticloudDbKey({"id": each["id"].strip()}), ask)
        assert found == dict.fromkeys(forms, rows[0])
        assert asked == forms[:1]


def test_a_failure_is_retried_and_then_told(bench):
    bench.sim.fail_next(None, ServerError("503"), times=2, operation="lookup")
    assert look_up(bench, KEYS[:1])[KEYS[0]] is not None
    bench.sim.fail_next(None, ServerError("503"), times=100, operation="lookup")
    with pytest.raises(MulticloudDbError) as caught:
        look_up(bench, KEYS[:1])
    assert (caught.value.retryable, caught.value.detail.operation) == (True, "lookup")


def test_a_provider_without_the_ability_is_refused(bench):
    lacking = capabilities_without(Capability.LOOKUP)
    bench.connect(provider=SimulationProvider(bench.sim, capabilities=lacking))
    with pytest.raises(MulticloudDbError, match="use another simulation") as caught:
        look_up(bench)
    assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY


def test_a_row_has_neither_an_order_key_nor_a_partition(bench):
    (row,) = look_up(bench, KEYS[:1]).values()
    assert (row.order_key, row.partition_id, row.backfilled) == ("", "", True)


def test_a_recreated_collection_is_opened_again(bench):
    assert look_up(bench, KEYS[:1])[KEYS[0]] is not None
    bench.sim.recreate()
    bench.sim.write("k0", {"n": "new"})
    assert look_up(bench, KEYS[:1])[KEYS[0]].new_item_state == {"n": "new"}
