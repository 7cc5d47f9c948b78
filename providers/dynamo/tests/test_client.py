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
from botocore.exceptions import ClientError

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.waiting import SOON
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo import client as module
from multiclouddb_dynamo.client import Calls, RateLimiter
from multiclouddb_dynamo.errors import classify
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
    """Answers every call with the given status, content type and body, and records the calls."""

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
        return [(limiter.wait(FAR), clock.now)[1] for _ in range(count)]

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


CALLS = {
    "DescribeTable": lambda calls, native: calls.describe_table("orders"),
    "DescribeStream": lambda calls, native: calls.describe_stream(ARN, FAR),
    "GetShardIterator": lambda calls, native: calls.iterator(ARN, SHARD, "TRIM_HORIZON"),
    "GetRecords": lambda calls, native: calls.records("it", 10, native=native),
    "Scan": lambda calls, native: calls.scan("orders", (0, 1), None, 10, native=native),
    "ListTables": lambda calls, native: calls.table_names(FAR),
    "BatchGetItem": lambda calls, native: calls.items("orders", [{"pk": {"S": "a"}}]),
}
REPLACED = [b"null", b"[]", b"7", b'"Records"', b"[[1, 2]]"]
CUT = [b'{"Records": [', b'{"ShardIterator": ', b"<html>", b"", b"{}"]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", [JSON, "text/html"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_answer_that_was_cut_off_or_replaced_is_tried_again(service, ours, call, kind, native):
    """botocore reads a body that is not JSON as an empty answer, and an empty answer ends a shard."""
    application = Calls(service.clients(), ours=False)
    for calls, bodies in ((ours, CUT + REPLACED), (application, CUT)):
        for body in bodies:
            service.says(body, kind)
            with pytest.raises(ProviderFault) as caught:
                call(calls, native)
            fault = caught.value.fault
            assert (fault.category, fault.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True), body


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        ((429, "text/html", b"<html>slow down</html>"), ErrorCategory.THROTTLED),
        ((500, JSON, b"null"), ErrorCategory.TRANSIENT_FAILURE),
    ],
)
def test_an_error_with_the_body_of_a_proxy_has_the_category_of_its_status(service, ours, answer, category):
    service.answer = answer
    with pytest.raises(ClientError) as caught:
        ours.records("it", 7, native=False)
    fault = classify(caught.value)
    assert (fault.category, fault.retryable) == (category, True)


class TestClock:
    def assert_ahead(self, calls, seconds, since):
        """Check how far a clock is ahead; it is rounded to seconds, and the machine may be busy."""
        found = (calls.now() - datetime.now(UTC)).total_seconds()
        assert found == pytest.approx(seconds, abs=2 + time.time() - since)

    @pytest.mark.parametrize("ahead", [3600, -90])
    def test_every_call_tells_the_time_of_the_service(self, service, ahead):
        stream = {"StreamDescription": {"Shards": []}, "ShardIterator": "it", "Records": []}
        tables = {"Table": {"KeySchema": []}, "Items": [], "TableNames": [], "Responses": {"orders": []}}
        service.says(stream | tables)
        for ask in CALLS.values():
            since, calls = time.time(), Calls(service.clients(), ours=False)
            service.date = formatdate(since + ahead, usegmt=True)
            ask(calls, False)
            self.assert_ahead(calls, ahead, since)
            assert calls.now().tzinfo is UTC

    @pytest.mark.parametrize("date", ["", "soon", "Mon, 99 Nov 2026 10:00:00 GMT"])
    def test_a_date_that_is_none_does_not_fail_the_call(self, service, ours, date):
        service.date = date
        assert ours.records("it", 7, native=False)["Records"]
        assert ours.now() is None

    def test_a_date_that_stands_still_does_not_stop_it(self, service, ours, monkeypatch):
        """A date contains whole seconds, so the first answer within each second is the most exact."""
        passed = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: SECONDS + passed)
        service.date = formatdate(SECONDS, usegmt=True)
        for passed in (0.0, 0.4, 0.9):
            ours.records("it", 7, native=False)
            assert ours.now().timestamp() == pytest.approx(SECONDS + passed, rel=0, abs=1e-3)

    @pytest.mark.parametrize(("body", "kind"), [(b"<html>Sign in</html>", "text/html"), (b"{}", JSON)])
    def test_an_answer_that_is_not_the_services_does_not_tell_it(self, service, ours, body, kind):
        """A proxy that answers itself has another clock."""
        service.date = "Fri, 01 Jan 2100 00:00:00 GMT"
        service.says(body, kind)
        for ask in CALLS.values():
            with pytest.raises(ProviderFault):
                ask(ours, False)
        assert ours.now() is None

    def test_a_refusal_tells_it_too(self, ours):
        since = time.time()
        ours.hear({"ResponseMetadata": {"HTTPHeaders": {"date": formatdate(since + 500, usegmt=True)}}})
        ours.hear({})
        self.assert_ahead(ours, 500, since)
