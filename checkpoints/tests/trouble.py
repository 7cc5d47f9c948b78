"""Tests what a store does when its service refuses, fails, loses an answer, or ignores conditions."""

import gc
import json
import pickle
import re
import socket
import threading
import time
import traceback
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from multiprocessing import get_context
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from botocore.client import BaseClient
from botocore.errorfactory import ClientExceptionsFactory

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_conformance.checkpoint_stores import refusal

from .servers import AZURITE_KEY, CREDENTIALS, free_port
from .stores import opened

SIGNED = "the string to sign was a/secret/that/nobody/may/see"
SECRETS = (AZURITE_KEY, CREDENTIALS["AWS_SECRET_ACCESS_KEY"])


def xml(status, code):
    text = SIGNED if code in ("SignatureDoesNotMatch", "AuthenticationFailed") else "no"
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"
    return status, {"Content-Type": "application/xml", "x-ms-error-code": code}, body


def google(status, reason):
    return status, {"Content-Type": "application/json"}, json.dumps({"error": {"message": reason}})


def dynamo(status, code):
    body = {
        "__type": f"com.amazonaws.dynamodb.v20120810#{code}",
        "message": "no" if "Sign" not in code else SIGNED,
    }
    return status, {"Content-Type": "application/x-amz-json-1.0"}, json.dumps(body)


ANSWERS = {
    "s3": {
        "AUTHORIZATION_FAILED": xml(403, "AccessDenied"),
        "AUTHENTICATION_FAILED": xml(403, "SignatureDoesNotMatch"),
        "THROTTLED": xml(503, "SlowDown"),
        "TRANSIENT_FAILURE": xml(500, "InternalError"),
        "NOT_FOUND": xml(404, "NoSuchBucket"),
        "INVALID_REQUEST": xml(400, "InvalidArgument"),
    },
    "gs": {
        "AUTHORIZATION_FAILED": google(403, "no access to the object"),
        "AUTHENTICATION_FAILED": google(401, SIGNED),
        "THROTTLED": google(429, "rateLimitExceeded"),
        "TRANSIENT_FAILURE": google(503, "backendError"),
        "NOT_FOUND": google(404, "The specified bucket does not exist."),
        "INVALID_REQUEST": google(400, "invalid"),
    },
    "azblob": {
        "AUTHORIZATION_FAILED": xml(403, "AuthorizationPermissionMismatch"),
        "AUTHENTICATION_FAILED": xml(403, "AuthenticationFailed"),
        "THROTTLED": xml(503, "ServerBusy"),
        "TRANSIENT_FAILURE": xml(500, "InternalError"),
        "NOT_FOUND": xml(404, "ContainerNotFound"),
        "INVALID_REQUEST": xml(400, "InvalidHeaderValue"),
    },
    "dynamodb": {
        "AUTHORIZATION_FAILED": dynamo(400, "AccessDeniedException"),
        "AUTHENTICATION_FAILED": dynamo(400, "InvalidSignatureException"),
        "THROTTLED": dynamo(400, "ProvisionedThroughputExceededException"),
        "TRANSIENT_FAILURE": dynamo(500, "InternalServerError"),
        "NOT_FOUND": dynamo(400, "ResourceNotFoundException"),
        "INVALID_REQUEST": dynamo(400, "ValidationException"),
    },
}
# Answers whose status has another meaning as well, or a text that says more than the status does.
OTHER_REASONS = {
    "s3": [
        (xml(403, "InvalidObjectState"), "AUTHORIZATION_FAILED", "403 InvalidObjectState"),
        (xml(403, "AllAccessDisabled"), "AUTHORIZATION_FAILED", "403 AllAccessDisabled"),
        (xml(409, "InvalidBucketState"), "INVALID_REQUEST", "409 InvalidBucketState"),
    ],
    "gs": [
        (
            google(403, "subject to the retention policy of the bucket"),
            "AUTHORIZATION_FAILED",
            "retention policy",
        ),
        (google(412, "Request violates constraint 'c'"), "INVALID_REQUEST", "violates constraint"),
        (google(404, "The requested URL was not found"), "NOT_FOUND", "requested URL"),
        ((404, {"Content-Type": "text/html"}, "<html>404 of a proxy</html>"), "NOT_FOUND", "404 of a proxy"),
    ],
    "azblob": [
        (xml(403, "AccountIsDisabled"), "AUTHORIZATION_FAILED", "403 AccountIsDisabled"),
        (xml(409, "BlobImmutableDueToPolicy"), "INVALID_REQUEST", "409 BlobImmutableDueToPolicy"),
        (xml(409, "ContainerBeingDeleted"), "TRANSIENT_FAILURE", "409 ContainerBeingDeleted"),
    ],
    "dynamodb": [
        (dynamo(400, "TransactionConflictException"), "TRANSIENT_FAILURE", "TransactionConflictException"),
        (dynamo(400, "ReplicatedWriteConflictException"), "TRANSIENT_FAILURE", "ReplicatedWriteConflict"),
        (dynamo(400, "ValidationException"), "INVALID_REQUEST", "correct what the service's message names"),
        (
            dynamo(400, "AccessDeniedException"),
            "AUTHORIZATION_FAILED",
            "if the service names no other reason",
        ),
    ],
}
OF_THE_LIBRARY = re.compile(r"/b/[^/?]+\?")
"""The path of a request about the bucket, which Google's library makes for its traces."""
RETRYABLE = ("THROTTLED", "TRANSIENT_FAILURE")
# Answers without a code that a store knows, by their status, on all services alike.
UNKNOWN = {
    402: "INVALID_REQUEST",
    408: "TRANSIENT_FAILURE",
    415: "INVALID_REQUEST",
    501: "UNSUPPORTED_CAPABILITY",
    507: "TRANSIENT_FAILURE",
}


def unknown(scheme, status):
    make = {"gs": google, "dynamodb": dynamo}.get(scheme, xml)
    return make(status, "SomethingNew")


class Between:
    """A server between a store and its service.

    Attributes:
        peers: The addresses of the connections that made requests.
        answer: The answer to every request, in place of the service's, or None.
        lost: How many answers to writes are still lost after the service has given them.
        weak: Whether it marks each ETag as weak, as a proxy does that compresses.
        unconditional: Which conditions are taken out of the requests: "every" one, those on the "version", or
            those of requests with this text in their path.
        racing: Whether, of two writes of a proof that come at once, the condition of one is checked before
            the other is stored.
        forbidden: A text, and the answer to a request that contains it and is no read; or None.
        asked: The method and path of every request.
        texts: The path and the body of every request.
        signed: Who has signed every request, in the words of its service.
        once: The answer to the next request, or None.
        refused: The answer to requests of the identities that have signed requests so far, or None.
    """

    def __init__(self, target):
        self.peers = set()
        self.answer, self.lost, self.weak, self.unconditional = None, 0, False, ""
        self.racing, self._pair = False, threading.Barrier(2)
        self.forbidden, self.asked, self.texts, self.signed = None, [], [], []
        self.refused, self.aged, self.once = None, set(), None
        target = urlsplit(target)
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def go(self):
                between.peers.add(self.client_address)
                # Some clients send chunks, which this server does not read: they name a length here.
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                between.asked.append((self.command, self.path))
                text = self.path + body.decode("latin-1")
                between.texts.append(text)
                between.signed.append(self.headers.get("Authorization", "").partition(", ")[0])
                if between.refused is not None and between.signed[-1] in between.aged:
                    self.give(*between.refused)
                    return
                if between.once is not None and not OF_THE_LIBRARY.search(self.path):
                    answer, between.once = between.once, None
                    self.give(*answer)
                    return
                if between.answer is not None:
                    self.give(*between.answer)
                    return
                if between.forbidden and between.forbidden[0] in between.texts[-1] and self.command != "GET":
                    self.give(*between.forbidden[1])
                    return
                path, headers = self.path, dict(self.headers.items())
                is_write = self.command in ("PUT", "POST") and b"ConsistentRead" not in body
                ignores = between.unconditional in ("every", "version") or (
                    between.unconditional and between.unconditional in path
                )
                if ignores or (between.racing and is_write and between.meets(text)):
                    every = between.unconditional != "version"
                    path = re.sub(rf"ifGenerationMatch={'' if every else '[1-9]'}\d*&?", "", path)
                    removed = ("if-match", "if-none-match") if every else ("if-match",)
                    headers = {k: v for k, v in headers.items() if k.lower() not in removed}
                    if every or b":version" in body:
                        body = unconditional(body)
                    headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
                with closing(HTTPConnection(target.hostname, target.port, timeout=30)) as service:
                    service.request(self.command, path, body, headers)
                    came = service.getresponse()
                    content, found = came.read(), dict(came.getheaders())
                if between.weak:
                    found = {k: f"W/{v}" if k.lower() == "etag" else v for k, v in found.items()}
                if is_write and between.lost:
                    between.lost -= 1
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.give(came.status, found, content)

            def give(self, status, headers, content):
                content = content.encode() if isinstance(content, str) else content
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in (
                        "content-length",
                        "transfer-encoding",
                        "connection",
                        "date",
                        "server",
                    ):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = go  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}{target.path}"

    def meets(self, text):
        """Return True for the second one of two writes that come at once."""
        found = PROBE.search(text)
        # A proof writes its name three times alone, and then four times at once.
        if found is None or not 3 < sum(found[0] in each for each in self.texts) <= 7:
            return False
        return self._pair.wait(30) == 0

    def count(self):
        """Return the number of the requests of the store."""
        return sum(not OF_THE_LIBRARY.search(path) for _, path in self.asked)

    def refuse_aged(self, answer):
        """Refuse from now on whoever has signed a request so far."""
        self.refused, self.aged = answer, set(self.signed)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def unconditional(body):
    """Take the condition out of a request to DynamoDB; leave any other body as it is."""
    try:
        asked = json.loads(body)
    except ValueError:
        return body
    if not isinstance(asked, dict) or "ConditionExpression" not in asked:
        return body
    return json.dumps(
        {k: v for k, v in asked.items() if "Condition" not in k and "Expression" not in k}
    ).encode()


class Troubled:
    """Puts a server between a store and its service."""

    @pytest.fixture
    def between(self, served, monkeypatch):
        # The vendors' clients wait between two attempts. Threads of drivers that earlier tests have left open
        # look at something and sleep: without their sleep, they would take all the time of this process.
        others, sleep = set(threading.enumerate()) - {threading.current_thread()}, time.sleep
        monkeypatch.setattr(
            "time.sleep", lambda seconds: sleep(seconds if threading.current_thread() in others else 0)
        )
        monkeypatch.setattr("multiclouddb_checkpoints.gcs._RETRY_SECONDS", 3.0)
        made = Between(served.endpoint)
        for name, value in served.environment(made.endpoint).items():
            monkeypatch.setenv(name, value)
        yield made
        made.close()

    @pytest.fixture
    def store(self, served, between):
        """Return a store that reaches its service through the server between them."""
        return opened(served, f"trouble-{uuid4().hex}", endpoint=between.endpoint)

    def check(self, error, category):
        assert (error.category, error.retryable) == (getattr(ErrorCategory, category), category in RETRYABLE)
        shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.detail)
        assert not [secret for secret in SECRETS if secret in shown]


# requests leaves the connection of a failed attempt to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestTrouble(Troubled):
    """Tests that each failure is one clear error, and that no failure loses a position or moves it back."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _collected(cls):
        """Let the garbage collector find these connections here, and not in a test of another file."""
        yield
        gc.collect()

    @pytest.mark.parametrize("category", sorted(ANSWERS["s3"]))
    def test_each_refusal_has_its_category_and_a_way_out(self, served, store, between, category):
        first = store.save("orders", "1", None)
        between.answer = ANSWERS[served.scheme][category]
        for call in (
            lambda: store.load("orders"),
            lambda: store.save("orders", "2", first.version),
            lambda: store.delete("orders"),
        ):
            error = refusal(call)
            self.check(error, category)
            assert f"{store.place}/orders" in error.message
            assert error.message.count(";") >= 2  # what failed; the way out; what is still there
        between.answer = None
        assert store.load("orders") == first
        assert store.save("orders", "2", first.version).token == "2"

    @pytest.mark.parametrize("status", sorted(UNKNOWN))
    def test_an_unknown_answer_is_the_services_own(self, served, store, between, status):
        """It has the category of its status, and its text, and nobody calls it a defect of this project."""
        first = store.save("orders", "1", None)
        between.answer = unknown(served.scheme, status)
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", first.version)):
            error = refusal(call)
            self.check(error, UNKNOWN[status])
            assert str(status) in error.message
            assert "defect" not in error.message
        between.answer = None
        assert store.load("orders") == first

    def test_a_status_with_many_meanings_leaves_the_word_to_the_service(self, served, store, between):
        first = store.save("orders", "1", None)
        for answer, category, words in OTHER_REASONS[served.scheme]:
            between.answer = answer
            for call in (
                lambda: store.load("orders"),
                lambda: store.save("orders", "2", first.version),
                lambda: store.delete("orders"),
            ):
                error = refusal(call)
                self.check(error, category)
                assert words in error.message
                assert "others write" not in error.message or category == "TRANSIENT_FAILURE"
                if category in ("AUTHORIZATION_FAILED", "NOT_FOUND"):
                    assert "if the service names no" in error.message
            between.answer = None
        assert store.load("orders") == first

    @pytest.mark.parametrize("more", [{}, {"ETag": '"63f0"', "x-goog-generation": "7"}], ids=["plain", "tag"])
    def test_a_page_of_a_proxy_is_no_answer_of_the_service(self, store, between, more):
        """It says 200: neither is there no checkpoint, nor is one saved or deleted."""
        first = store.save("orders", "1", None)
        between.answer = 200, {"Content-Type": "text/html", **more}, "<html>Sign in, or {wait}</html>"
        for call in (
            lambda: store.load("orders"),
            lambda: store.save("orders", "2", first.version),
            lambda: store.save("others", "1", None),
            lambda: store.delete("orders"),
        ):
            error = refusal(call)
            # A content that has come with its tag may also be one that somebody has stored.
            kept = error.category == ErrorCategory.INVALID_REQUEST and more and "is HTML" in error.message
            if not kept:
                self.check(error, "TRANSIENT_FAILURE")
            assert "in place of the service" in error.message
            assert "check the network and the endpoint, and try again" in error.message
        between.answer = None
        assert store.load("orders") == first
        assert store.load("others") is None

    def test_delete_of_what_is_gone_is_done(self, store):
        store.delete("orders")
        store.save("orders", "1", None)
        store.delete("orders")
        store.delete("orders")
        assert store.load("orders") is None

    def test_an_outage_can_be_retried(self, served, store, monkeypatch):
        first = store.save("orders", "1", None)
        nowhere = f"http://127.0.0.1:{free_port()}/devstoreaccount1"
        for name, value in served.environment(nowhere).items():
            monkeypatch.setenv(name, value)
        away = opened(served, endpoint=nowhere)
        for call in (lambda: away.load("orders"), lambda: away.save("orders", "2", None)):
            self.check(refusal(call), "TRANSIENT_FAILURE")
        assert store.load("orders") == first

    @pytest.mark.parametrize("version", ["none", "a version"])
    def test_a_write_whose_answer_was_lost_counts_once(self, store, between, version):
        first = None if version == "none" else store.save("orders", "1", None)
        between.lost = 1
        saved = store.save("orders", "2", first and first.version)
        assert between.lost == 0
        assert store.load("orders") == saved
        assert store.save("orders", "3", saved.version).token == "3"

    def test_a_proxy_that_weakens_tags_stops_no_writer(self, store, between):
        between.weak = True
        first = store.save("orders", "1", None)
        assert store.load("orders") == first
        second = store.save("orders", "2", first.version)
        self.check(refusal(store.save, "orders", "3", first.version), "CONFLICT")
        assert store.load("orders") == second

    def test_the_child_of_a_fork_connects_itself(self, store, between):
        first = store.save("orders", "1", None)
        store.load("orders")
        known = set(between.peers)
        child = get_context("fork").Process(target=store.load, args=("orders",))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert between.peers > known
        assert store.save("orders", "2", first.version).token == "2"

    def test_a_place_that_does_not_exist_is_named(self, served):
        store = opened(served, place="no-such-place")
        self.check(refusal(store.save, "orders", "1", None), "NOT_FOUND")

    def test_a_version_of_another_store_conflicts(self, store):
        store.save("orders", "1", None)
        for version in ("1-0a0b0c0d", "7", "1-0a0b0c0d@", "1-0a0b0c0d@12"):
            self.check(refusal(store.save, "orders", "2", version), "CONFLICT")
        assert store.load("orders").token == "1"

    def test_a_url_never_has_a_password_and_names_a_place(self, served):
        scheme = served.scheme
        for url in (
            f"{scheme}://me:hush@place/x",
            f"{scheme}:///x",
            f"{scheme}://place/a b",
            f"{scheme}://place/a/../b",
            f"{scheme}://place/./b",
            f"{scheme}://../b",
            f"{scheme}://place/x?secret=hush",
            f"{scheme}://place/x#hush",
            f"{scheme}://place/x?endpoint_url=http://me:hush@host",
        ):
            with pytest.raises(MulticloudDbError) as caught:
                type(opened(served))(url)
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            assert "hush" not in str(caught.value)


REFUSALS = {
    "s3": [
        xml(400, "ExpiredToken"),
        xml(400, "TokenRefreshRequired"),
        xml(403, "InvalidAccessKeyId"),
        xml(403, "SignatureDoesNotMatch"),
        xml(403, "RequestTimeTooSkewed"),
        xml(403, "RequestExpired"),
        xml(403, "AccessDenied"),
    ],
    "gs": [google(401, SIGNED), google(403, "no access to the object")],
    "azblob": [
        xml(401, "InvalidAuthenticationInfo"),
        xml(403, "AuthenticationFailed"),
        xml(403, "AuthorizationFailure"),
    ],
    "dynamodb": [
        dynamo(400, "ExpiredTokenException"),
        dynamo(400, "UnrecognizedClientException"),
        dynamo(400, "InvalidSignatureException"),
        dynamo(400, "RequestExpired"),
        dynamo(400, "AccessDeniedException"),
    ],
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestRenewal(Troubled):
    """Tests that a store finds credentials that were renewed, and asks once more and no more."""

    def test_a_refusal_is_answered_with_the_credentials_of_today(self, served, store, between, monkeypatch):
        for number, answer in enumerate(REFUSALS[served.scheme]):
            first = store.save(f"orders-{number}", "1", None)
            between.refuse_aged(answer)
            if served.scheme in ("s3", "dynamodb"):
                # A key of the environment, as a file of credentials, is read by new clients only.
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"renewed{number}")
            else:
                between.aged.clear()
                between.once = answer
            asked = between.count()
            assert store.load(f"orders-{number}") == first
            assert between.count() == asked + 2
            assert store.save(f"orders-{number}", "2", first.version).token == "2"
            if served.scheme in ("s3", "dynamodb"):
                assert f"renewed{number}" in between.signed[-1]
                assert between.count() == asked + 3, "the credentials are renewed once"

    def test_a_refusal_that_no_credentials_change_costs_one_more_request(self, served, store, between):
        first = store.save("orders", "1", None)
        calls = (
            lambda: store.load("orders"),
            lambda: store.save("orders", "2", first.version),
            lambda: store.delete("orders"),
        )
        answers = REFUSALS[served.scheme]
        # Not each answer to each call: a call makes a new client, for which some SDKs read hundreds of files.
        for answer, call in [*product(answers[:1], calls), *product(answers[1:], calls[:1])]:
            store.load("others")
            asked = between.count()
            between.answer = answer
            refusal(call)
            assert between.count() == asked + 2, (answer, between.asked)
            between.answer = None
        assert store.load("orders") == first

    def test_the_applications_own_client_is_used_as_it_is(self, served, store, between):
        store.save("orders", "1", None)
        own = type(store)(served.url("own", endpoint=between.endpoint), client=store._client)
        between.answer = REFUSALS[served.scheme][0]
        asked = between.count()
        refusal(own.load, "orders")
        assert (between.count(), own._client) == (asked + 1, store._client)


# Of each scheme: hosts of the vendor, and others.
HOSTS = {
    "gs": (
        ["storage.googleapis.com", "storage-psc.p.googleapis.com"],
        ["", "localhost", "storage.googleapis.com.example", "agoogleapis.com"],
    ),
    "dynamodb": (
        [
            "dynamodb.eu-west-1.amazonaws.com",
            "vpce-1a2b-3c4d.dynamodb.eu-west-1.vpce.amazonaws.com",
            "dynamodb-fips.us-east-1.amazonaws.com",
            "dynamodb.cn-north-1.amazonaws.com.cn",
            "dynamodb.eu-west-1.api.aws",
        ],
        ["", "localhost", "dynamodb.amazonaws.com.example", "dynamodb.localhost.localstack.cloud"],
    ),
}
PROBE = re.compile(r"orders\.probe-[0-9a-f]{16}")


def probes(between):
    """Return the names of the objects of proofs, one for each request that has one."""
    return [found[0] for text in between.texts if (found := PROBE.search(text))]


class TestIgnoredConditions(Troubled):
    """Tests a service that takes every write, as look-alikes of each of the four do."""

    @pytest.mark.parametrize("unconditional", ["every", "version"])
    def test_a_service_that_ignores_conditions_is_refused_before_a_name_is_written(
        self, store, between, unconditional
    ):
        between.unconditional = unconditional
        self.check(refusal(store.save, "orders", "1", None), "UNSUPPORTED_CAPABILITY")
        assert store.load("orders") is None
        (probe,) = {*probes(between)}
        assert store.load(probe) is None, "the object of the proof is deleted"

    def test_a_service_whose_writes_are_two_steps_is_refused(self, store, between):
        """It reads, compares and writes, and another write may come between."""
        between.racing = True
        error = refusal(store.save, "orders", "1", None)
        self.check(error, "UNSUPPORTED_CAPABILITY")
        assert "at once" in error.message
        between.racing = False
        assert {store.load(name) for name in ("orders", *probes(between))} == {None}

    def test_a_service_that_allows_one_write_a_second_is_taken(self, store, monkeypatch):
        write, lock = store._write, threading.Lock()

        def throttled(*asked):
            if not lock.acquire(blocking=False):
                raise MulticloudDbError("busy", ErrorDetail(ErrorCategory.THROTTLED, "kind", "checkpoint"))
            try:
                return write(*asked)
            finally:
                lock.release()

        monkeypatch.setattr(store, "_write", throttled)
        first = store.save("orders", "1", None)
        assert store.load("orders") == first

    @pytest.mark.parametrize("unconditional", ["every", "version"])
    def test_a_process_that_finds_a_checkpoint_finds_it_out_too(
        self, served, store, between, unconditional, tmp_path
    ):
        first = store.save("orders", "1", None)
        between.unconditional = unconditional
        other = pickle.loads(pickle.dumps(store))
        found = other.load("orders")
        self.check(refusal(other.save, "orders", "2", found.version), "UNSUPPORTED_CAPABILITY")
        assert other.load("orders") == first, "the proof never touches the name itself"

    def test_the_proof_is_made_once_and_leaves_nothing(self, store, between):
        first = store.save("orders", "1", None)
        asked = probes(between)
        # Three writes and four at once; four at once of another name; each name is deleted.
        assert sorted(map(asked.count, {*asked})) == [5, 8]
        store.save("orders", "2", first.version)
        store.save("others", "1", None)
        assert probes(between) == asked
        assert [store.load(name) for name in {*asked}] == [None, None]

    def test_a_role_that_may_write_the_name_alone_is_warned(self, served, store, between, caplog):
        between.forbidden = ".probe-", ANSWERS[served.scheme]["AUTHORIZATION_FAILED"]
        first = store.save("orders", "1", None)
        assert store.save("orders", "2", first.version).token == "2"
        (record,) = [each for each in caplog.records if each.name == "multiclouddb.checkpoints"]
        assert "not known whether" in record.getMessage()
        assert "orders.probe-" in record.getMessage()


class TestPromisedConditions(Troubled):
    """Tests that nobody pays for a proof at a host of the vendor, which documents its conditions."""

    def test_a_save_is_one_write(self, store, between, monkeypatch):
        monkeypatch.setattr(type(store), "keeps_conditions", re.compile(r"127\.0\.0\.1"))
        store.save("orders", "1", None)
        assert [method for method, _ in between.asked if method != "GET"] == ["POST"]

    def test_the_hosts_of_the_vendor_are_known(self, served):
        kind = type(opened(served))
        theirs, others = HOSTS[served.scheme]
        assert [host for host in theirs if not kind.keeps_conditions.fullmatch(host)] == []
        assert [host for host in others if kind.keeps_conditions.fullmatch(host)] == []


class TestExceptionClasses:
    """Two threads that are the first to use a client of boto3 get two classes for one code of the service."""

    def test_absence_and_conflict_are_known_by_their_code(self, served, monkeypatch):
        store = opened(served, f"classes-{uuid4().hex}")

        def made(client):
            return ClientExceptionsFactory().create_client_exceptions(client.meta.service_model)

        monkeypatch.setattr(BaseClient, "exceptions", property(made))
        assert store.load("orders") is None
        store.save("orders", "1", None)
        assert refusal(store.save, "orders", "2", None).category == ErrorCategory.CONFLICT
