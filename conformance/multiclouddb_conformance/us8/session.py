"""Tests the client itself: time limits, closing, threads, forks, secrets and leaks."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import base64
import logging
import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import attrs
import orjson
import pytest

from multiclouddb_api import (
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    Observer,
    OperationOptions,
    PhysicalPartition,
    ResourceAddress,
    page_from_json,
    page_to_json,
)
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.faults import Silent
from multiclouddb_conformance.harness import Harness
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.waiting import SOON, assert_prompt, wait_until
from multiclouddb_spi.continuation.token import decode_token, encode_token

__all__ = ["TestClosing", "TestDeadline", "TestPickling", "TestReleasing", "TestSecrets", "TestSharing"]

_SOON: Final = 3.0
"""How many seconds a call with a time limit of less than one second may take, including the start of
threads."""
_STUCK: Final = 10.0
"""Half of the number of seconds that a call takes if nothing ends the call early."""


def _nothing() -> None:
    pass


def _closing_takes(client: MulticloudDbClient, call: Callable[[], object]) -> float:
    """Close a client during a call; the call must fail."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        time.sleep(0.2)
        began = time.monotonic()
        client.close()
        error = running.exception(timeout=60)
        took = time.monotonic() - began
    assert isinstance(error, MulticloudDbError)
    return took


def _failing_takes(call: Callable[[], object]) -> float:
    """Make a call that must fail; return the number of seconds until it fails."""
    began = time.monotonic()
    with pytest.raises(MulticloudDbError) as caught:
        call()
    check_refusal(caught.value, ErrorCategory.TRANSIENT_FAILURE)
    assert caught.value.retryable
    return time.monotonic() - began


@pytest.mark.shows("Promise 12")
@pytest.mark.needs("silence")
class TestDeadline:
    """`timeout_seconds` is respected, whatever the service does."""

    def test_a_silent_service_does_not_hold_a_call(self, collection: Collection) -> None:
        collection.fill(3)
        with collection.harness.troubled(Silent(), _nothing) as client:

            def attempt() -> float:
                took = _failing_takes(lambda: collection.page(collection.begin, client=client, timeout=0.5))
                assert took >= 0.4
                return took

            assert_prompt(_SOON, attempt, at_most=_STUCK)

    @pytest.mark.needs("alone")
    def test_a_service_that_is_silent_from_the_start_does_not_either(self, collection: Collection) -> None:
        request, options = collection.request(collection.begin), OperationOptions(timeout_seconds=0.3)
        with collection.harness.troubled(Silent(from_the_start=True), _nothing) as client:
            for call in (
                lambda: client.read_changes(request, options),
                lambda: client.plan_partitions(request, options),
                lambda: client.list_physical_partitions(collection.address, options),
            ):
                assert_prompt(_SOON, partial(_failing_takes, call), at_most=_STUCK)

    def test_the_token_stays_good_after_a_deadline(self, collection: Collection) -> None:
        collection.fill(3)
        with collection.harness.troubled(Silent(), _nothing) as client:
            collection.refused(ErrorCategory.TRANSIENT_FAILURE, collection.begin, client=client, timeout=0.2)
        assert len(collection.read(collection.begin, 3)) == 3


@pytest.mark.shows("Further 6")
class TestClosing:
    """Any thread may call `close()` at any time."""

    @pytest.mark.needs("silence")
    def test_a_read_that_runs_ends_within_a_second(self, collection: Collection) -> None:
        def attempt() -> float:
            client = collection.harness.troubled(Silent(), _nothing)
            return _closing_takes(client, lambda: collection.page(collection.begin, client=client))

        assert_prompt(1.5, attempt, at_most=_STUCK)

    def test_a_long_poll_ends_within_a_second(self, collection: Collection) -> None:
        token = collection.last(collection.begin).continuation_token

        def attempt() -> float:
            client = collection.harness.connect()
            return _closing_takes(client, lambda: collection.page(token, client=client, wait=20))

        assert_prompt(1.5, attempt, at_most=_STUCK)

    def test_a_closed_client_refuses_and_says_what_to_do(self, collection: Collection) -> None:
        collection.client.close()
        collection.client.close()
        error = collection.refused(ErrorCategory.INVALID_REQUEST, collection.begin)
        assert "closed" in error.message

    def test_a_client_is_a_context_manager(self, harness: Harness) -> None:
        with harness.connect() as client:
            assert client.capabilities() is not None
        with pytest.raises(MulticloudDbError, match="closed"):
            client.capabilities()


@pytest.mark.shows("Further 7")
class TestSharing:
    """Several threads and processes share one client."""

    def test_threads_share_a_client(self, collection: Collection) -> None:
        collection.fill(30)
        with ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(lambda size: collection.drain(collection.begin, size), (0, 1, 2, 5)))
        assert all(len(events) == 30 for events in runs)
        assert len({tuple(sorted(ids(events))) for events in runs}) == 1

    def test_threads_read_the_same_token_at_once(self, collection: Collection) -> None:
        collection.fill(10)
        barrier = threading.Barrier(4)

        def read(_: int) -> list[str]:
            barrier.wait()
            return sorted(ids(collection.drain(collection.begin, 3)))

        with ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(read, range(4)))
        assert all(run == runs[0] for run in runs)
        assert len(runs[0]) == 10

    @pytest.mark.shows("Promise 1")
    def test_reading_while_writing_loses_nothing(self, collection: Collection) -> None:
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(collection.fill, 60)
            seen, token = set[str](), collection.begin
            while not writing.done():
                page = collection.page(token, 4)
                token = page.continuation_token
                seen.update(ids(page.events))
            writing.result()
        seen.update(ids(collection.drain(token)))
        assert len(seen) == 60

    @pytest.mark.needs("fork")
    def test_a_child_process_is_refused_and_the_parent_goes_on(self, collection: Collection) -> None:
        collection.fill(5)
        collection.read(collection.begin, 5)
        assert "made in another process: connect here" in _count_in_child(collection)
        assert len(collection.drain(collection.begin)) == 5

    @pytest.mark.needs("fork", "fork_in_calls")
    def test_children_are_refused_while_four_threads_of_the_parent_read(self, collection: Collection) -> None:
        collection.fill(10)
        collection.read(collection.begin, 10)
        over, started = threading.Event(), threading.Barrier(5)

        def read(size: int) -> list[int]:
            counts = [len(collection.drain(collection.begin, size))]
            started.wait()
            while not over.is_set():
                counts.append(len(collection.drain(collection.begin, size)))
            return counts

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(read, size) for size in (0, 1, 3, 4)]
            try:
                started.wait(SOON)
                in_children = [_count_in_child(collection) for _ in range(4)]
                collection.fill(5, start=10)
                assert len(collection.read(collection.begin, 15)) == 15
            finally:
                over.set()
            counts = [run.result() for run in running]
        assert [each for each in in_children if "made in another process" not in each] == []
        assert all(set(each) <= set(range(10, 16)) and each == sorted(each) for each in counts)


def _count_in_child(collection: Collection) -> str:
    """Fork, and return the number of events that the child reads, or its error."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this tests the client's threads
        child = os.fork()
    if not child:
        _report(writing, collection)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        try:
            return pipe.read() if select.select([pipe], [], [], SOON)[0] else "nothing: it hangs"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _report(pipe: int, collection: Collection) -> None:
    """In the child process, write the number of events and exit without pytest's cleanup."""
    try:
        text = str(len(collection.drain(collection.begin)))
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        text = repr(error)
    os.write(pipe, text.encode())
    os._exit(0)


@pytest.mark.shows("Further 8")
class TestSecrets:
    """Messages, logs and reprs contain no secrets."""

    def test_documents_and_keys_are_in_no_repr_and_no_log(
        self, collection: Collection, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        secret = "tell nobody about this " * 3
        collection.put(secret, n=1, text=secret)
        shown = []
        for page in collection.pages(collection.begin, 1):
            shown += [repr(page), repr(collection.request(page.continuation_token))]
            shown += [repr(event) for event in page.events]
        shown.append(str(collection.refused(ErrorCategory.INVALID_REQUEST, "nonsense")))
        mine = [each.getMessage() for each in caplog.records if each.name.startswith("multiclouddb")]
        assert not [text for text in (*shown, *mine) if secret in text]

    @pytest.mark.needs("secrets", "alone")
    def test_what_a_client_connects_with_is_in_no_repr_message_or_log(
        self, harness: Harness, collection: Collection, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        collection.fill(3)
        collection.read(collection.begin, 3)
        shown = [repr(collection.client), repr(harness.config()), str(harness.config())]
        error = collection.refused(ErrorCategory.NOT_FOUND, _position(collection), address=harness.missing())
        shown += [
            str(error),
            repr(error),
            repr(error.detail),
            *(each.getMessage() for each in caplog.records),
        ]
        assert not [text for text in shown for secret in harness.secrets if secret in text]

    def test_a_token_is_shortened_wherever_it_is_shown(self, collection: Collection) -> None:
        page = collection.page(collection.begin)
        token = page.continuation_token
        assert len(token) > 48
        assert token not in repr(page)
        assert token not in repr(collection.request(token))
        assert token not in repr(collection.page(token))

    def test_a_token_and_a_partition_id_hold_no_document_and_no_secret(
        self, harness: Harness, collection: Collection
    ) -> None:
        hidden = ("a-field-that-no-token-may-hold", *harness.secrets)
        collection.put("k-one", n=1, text=hidden[0])
        collection.put("k-two", n=2, text=hidden[0])
        held = [orjson.dumps([*collection.partitions()]).decode()]
        for page in collection.pages(collection.begin, 1):
            envelope = decode_token(page.continuation_token)
            held += [orjson.dumps(envelope.state).decode(), repr(envelope.address), *map(str, page.notices)]
            held += [repr(page.diagnostics), *(child.partition_id for child in page.child_partitions)]
        forms = [form for text in hidden for form in _forms(text)]
        assert not [text for text in held for form in forms if form in text]


def _forms(text: str) -> Iterator[str]:
    """Return a text as positions spell it: plain, in hexadecimal digits, or in base64."""
    raw = text.encode()
    yield from (text, raw.hex(), raw.hex().upper())
    # Three alphabets begin at another place of a longer text; the ends depend on what is beside it.
    yield from (base64.b64encode(raw[start:])[: len(raw) // 3 * 4 - 8].decode() for start in range(3))


def _position(collection: Collection) -> str:
    """Return a token for the missing collection."""
    envelope = decode_token(collection.begin)
    return encode_token(attrs.evolve(envelope, address=collection.harness.missing()))


@pytest.mark.shows("Further 9")
class TestPickling:
    """A value that is sent to another process arrives there unchanged."""

    def test_pages_events_and_requests_do(self, collection: Collection) -> None:
        collection.fill(5)
        for page in collection.pages(collection.begin, 2):
            request = collection.request(page.continuation_token)
            for value in (page, request, page.diagnostics, *page.events, *page.notices):
                assert pickle.loads(pickle.dumps(value)) == value
            assert page_from_json(page_to_json(page)) == page

    def test_errors_do(self, harness: Harness, collection: Collection) -> None:
        (name, *_) = collection.partitions()
        errors = [
            collection.refused(ErrorCategory.INVALID_REQUEST, "nonsense"),
            collection.refused(
                ErrorCategory.INVALID_REQUEST, collection.begin, scope=PhysicalPartition(name)
            ),
        ]
        with pytest.raises(MulticloudDbError) as caught:
            collection.now(address=harness.missing())
        for error in (*errors, caught.value):
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is type(error)
            assert (str(again), again.detail) == (str(error), error.detail)

    def test_capabilities_and_the_configuration_do(self, client: MulticloudDbClient) -> None:
        for value in (client.capabilities(), client.config):
            assert pickle.loads(pickle.dumps(value)) == value

    def test_a_client_does_not_and_says_what_does(self, client: MulticloudDbClient) -> None:
        with pytest.raises(MulticloudDbError, match="config"):
            pickle.dumps(client)


class _Counting(Observer):
    def __init__(self) -> None:
        self.open = 0
        self._lock = threading.Lock()

    def reader_opened(self, address: ResourceAddress, partition_id: str) -> None:
        with self._lock:
            self.open += 1

    def reader_closed(self, address: ResourceAddress, partition_id: str) -> None:
        with self._lock:
            self.open -= 1


@pytest.mark.shows("Further 10")
class TestReleasing:
    """Repeated use leaves no resources open."""

    def test_many_pages_leave_no_reader_open(self, collection: Collection) -> None:
        observer = _Counting()
        collection.fill(20)
        collection.client.close()
        collection.client = collection.harness.connect(observer)
        token, most = collection.begin, 0
        threads = threading.active_count()
        for number in range(250):
            page = collection.page(token, 1)
            token = collection.begin if number % 22 == 21 else page.continuation_token
            most = max(most, observer.open)
        assert most <= 4 * len(collection.partitions()) + 100
        assert threading.active_count() <= threads + 2 * 32
        collection.client.close()
        patience = max(10.0, collection.harness.patience_seconds)
        wait_until(lambda: not observer.open, patience)
        wait_until(lambda: not collection.harness.open_readers(), patience)
