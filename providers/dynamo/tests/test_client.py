"""Tests calls through boto3: their rate, records read without botocore's parser, and the service's clock."""

import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import boto3
import orjson
import pytest
from botocore.config import Config

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.waiting import SOON
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo import client as module
from multiclouddb_dynamo.client import Calls, RateLimiter
from multiclouddb_spi import Deadline, ProviderFault

ARN = "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/2026-01-31T12:00:00.000"
SHARD = "shardId-00000001541626099285-f35f62ef"
JSON = "application/x-amz-json-1.0"
SECONDS = 1_763_634_171
RECORD = {
    "eventID": "e",
    "eventName": "INSERT",
    "dynamodb": {
        "Keys": {"pk": {"B": "aGk="}},
        "SequenceNumber": "000000000000000000042",
        "ApproximateCreationDateTime": SECONDS,
        "NewImage": {"pk": {"B": "aGk="}, "n": {"N": "1.50"}},
    },
}
PAGE = {"Records": [RECORD], "NextShardIterator": "next"}
SESSION = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local")
FAR = Deadline(10.0**9)


class Service(ThreadingHTTPServer):
    """Answers every call as the test specifies, and records the calls.

    Attributes:
        answer: The status, the content type and the body of the answer.
        date: The value of the header `Date`, or None.
        asked: The names of operations with their arguments.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.date, self.asked = (200, JSON, orjson.dumps(PAGE)), None, []

    def says(self, body, kind=JSON):
        self.answer = (200, kind, body if isinstance(body, bytes) else orjson.dumps(body))

    def clients(self):
        settings = {
            "region_name": "eu-west-1",
            "endpoint_url": f"http://127.0.0.1:{self.server_port}",
            "config": Config(retries={"mode": "standard", "total_max_attempts": 1}),
        }
        return DynamoClients(
            SESSION.client("dynamodb", **settings), SESSION.client("dynamodbstreams", **settings)
        )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.headers["X-Amz-Target"].rpartition(".")[2], body))
        status, kind, answer = self.server.answer
        self.send_response_only(status)
        if self.server.date is not None:
            self.send_header("Date", self.server.date)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Suppress log messages."""


@pytest.fixture
def service():
    with Service() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join(SOON)


@pytest.fixture
def ours(service):
    made = Calls(service.clients(), ours=True)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    """Provide a clock that advances only during sleeps."""
    made = SimpleNamespace(now=1000.0)

    def sleep(seconds):
        assert seconds > 0
        made.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=sleep))
    return made


class TestPace:
    def turns(self, limiter, clock, count):
        found = []
        for _ in range(count):
            limiter.wait(FAR)
            found.append(clock.now)
        return found

    def test_no_second_has_more_than_ten(self, clock):
        found = self.turns(RateLimiter(10), clock, 40)
        assert found[:10] == pytest.approx([1000.0] * 10)
        assert all(found[index + 10] - found[index] > 1 for index in range(30))
        assert found[-1] - found[0] == pytest.approx(3 * 1.05)

    def test_a_turn_behind_the_deadline_is_refused_and_not_taken(self, clock):
        limiter = RateLimiter(10)
        self.turns(limiter, clock, 10)
        start = clock.now
        for _ in range(3):
            with pytest.raises(ProviderFault) as caught:
                limiter.wait(Deadline(start + 0.05))
        assert clock.now == start
        fault = caught.value.fault
        assert (fault.category, fault.retryable) == (ErrorCategory.THROTTLED, True)
        assert "timeout_seconds" in fault.message
        assert self.turns(limiter, clock, 1) == pytest.approx([start + 1.05])

    def test_threads_share_it(self):
        limiter, moments = RateLimiter(100), []

        def call():
            limiter.wait(FAR)
            moments.append(time.monotonic())

        begin = time.monotonic()
        threads = [threading.Thread(target=call) for _ in range(130)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert len(moments) == 130
        assert max(moments) - begin >= 0.29

    def test_every_stream_has_its_own(self, service, ours, clock):
        service.says({"StreamDescription": {"Shards": []}})
        for arn in (ARN, ARN.replace("orders", "others")):
            for _ in range(10):
                ours.describe_stream(arn, FAR)
        assert clock.now == pytest.approx(1000.0)
        ours.describe_stream(ARN, FAR)
        assert clock.now == pytest.approx(1001.05)


class TestRecords:
    @pytest.mark.parametrize("kind", [JSON, f"{JSON}; charset=utf-8"])
    def test_ours_come_as_they_are_on_the_wire(self, service, ours, kind):
        service.says(PAGE, kind)
        answer = ours.records("it", 7, native=False)
        assert (answer["Records"], answer["NextShardIterator"]) == ([RECORD], "next")
        assert service.asked == [("GetRecords", {"ShardIterator": "it", "Limit": 7})]

    def test_native_ones_come_as_boto3_parses_them(self, service, ours):
        mine = service.clients().streams.get_records(ShardIterator="it", Limit=7)
        application = service.clients()
        other = Calls(application, ours=False)
        for calls, native in ((ours, True), (other, True), (other, False)):
            assert calls.records("it", 7, native=native)["Records"] == mine["Records"]
        other.close()
        assert application.streams.get_records(ShardIterator="it")["Records"]  # the client is still open
        service.says(PAGE, "application/json")  # of another kind of text, botocore knows more
        assert ours.records("it", 7, native=False)["Records"] == mine["Records"]
        (record,) = mine["Records"]
        assert record["dynamodb"]["Keys"] == {"pk": {"B": b"hi"}}

    def test_threads_do_not_disturb_each_other(self, ours):
        wrong = []

        def read(native):
            for _ in range(20):
                (record,) = ours.records("it", 7, native=native)["Records"]
                if type(record["dynamodb"]["Keys"]["pk"]["B"]) is not (bytes if native else str):
                    wrong.append(native)

        threads = [threading.Thread(target=read, args=(number % 2 == 0,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert wrong == []

    @pytest.mark.parametrize("native", [True, False])
    @pytest.mark.parametrize("kind", [JSON, "text/html"])
    @pytest.mark.parametrize("body", [b'{"Records": [', b"<html>", b"", b"{}"])
    def test_an_answer_without_records_is_not_the_end_of_a_shard(self, service, ours, body, kind, native):
        """botocore reads a body that is not JSON as an empty answer, and an empty answer ends a shard."""
        service.says(body, kind)
        for calls in (ours, Calls(service.clients(), ours=False)):
            assert is_transient(calls.records, "it", 7, native=native)

    @pytest.mark.parametrize("native", [True, False])
    @pytest.mark.parametrize("body", [b"[]", b"7", b"null", b'"Records"', b"[[1, 2]]"])
    def test_a_body_that_is_no_object_fails(self, service, ours, body, native):
        service.says(body)
        with pytest.raises((ProviderFault, AttributeError)):
            ours.records("it", 7, native=native)


def is_transient(call, *arguments, **named):
    """Return True if the call fails with an error that may be retried."""
    with pytest.raises(ProviderFault) as caught:
        call(*arguments, **named)
    return caught.value.fault.category == ErrorCategory.TRANSIENT_FAILURE and caught.value.fault.retryable


@pytest.mark.parametrize("body", [b"<html>", b'{"ShardIterator": ', b"{}"])
def test_an_answer_without_an_iterator_is_not_the_end_of_a_shard(service, ours, body):
    service.says(body)
    assert is_transient(ours.iterator, ARN, SHARD, "TRIM_HORIZON")


def assert_ahead(calls, seconds, since):
    """Check how far a clock is ahead, with a tolerance for rounding to seconds and for a busy machine."""
    found = (calls.now() - datetime.now(UTC)).total_seconds()
    assert found == pytest.approx(seconds, abs=2 + time.time() - since)


class TestClock:
    @pytest.mark.parametrize("ahead", [3600, -90])
    def test_every_call_tells_the_time_of_the_service(self, service, ahead):
        stream = {"StreamDescription": {"Shards": []}, "ShardIterator": "it", "Records": []}
        service.says(stream | {"Table": {"KeySchema": []}})
        for ask in (
            lambda calls: calls.describe_table("orders"),
            lambda calls: calls.describe_stream(ARN, FAR),
            lambda calls: calls.iterator(ARN, SHARD, "LATEST"),
            lambda calls: calls.records("it", 7, native=False),
        ):
            since, calls = time.time(), Calls(service.clients(), ours=False)
            service.date = formatdate(since + ahead, usegmt=True)
            ask(calls)
            assert calls.tells_time
            assert_ahead(calls, ahead, since)
            assert calls.now().tzinfo is UTC

    @pytest.mark.parametrize("date", ["", "soon", "Mon, 99 Nov 2026 10:00:00 GMT"])
    def test_a_date_that_is_none_does_not_fail_the_call(self, service, ours, date):
        service.date = date
        assert ours.records("it", 7, native=False)["Records"]
        assert not ours.tells_time

    def test_a_date_that_stands_still_does_not_stop_it(self, service, ours, monkeypatch):
        """A date contains whole seconds, so the first answer within each second is the most exact."""
        passed = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: SECONDS + passed)
        service.date = formatdate(SECONDS, usegmt=True)
        for passed in (0.0, 0.4, 0.9):
            ours.records("it", 7, native=False)
            assert ours.now().timestamp() == pytest.approx(SECONDS + passed)

    def test_a_refusal_tells_it_too(self, ours):
        since = time.time()
        ours.hear({"ResponseMetadata": {"HTTPHeaders": {"date": formatdate(since + 500, usegmt=True)}}})
        ours.hear({})
        assert_ahead(ours, 500, since)
