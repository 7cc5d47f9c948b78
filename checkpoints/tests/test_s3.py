"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from multiclouddb_api import ErrorCategory, MulticloudDbError, checkpoint, open_checkpoint_store
from multiclouddb_checkpoints import s3
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)

from .servers import PLACE
from .stores import opened
from .trouble import TestExceptionClasses, TestIgnoredConditions, TestRenewal, TestTrouble  # noqa: F401

SCHEME = "s3"


@pytest.mark.parametrize(
    "answer", [(409, "OperationAborted"), (304, None), (409, "ConditionalRequestConflict")]
)
@pytest.mark.parametrize("stored", [False, True])
def test_a_write_that_meets_another_is_tried_again(served, answer, stored):
    """What OVH and older releases of MinIO answer to a condition, once."""
    store = opened(served, f"met-{uuid4().hex}")
    first = store.save("orders", "1", None) if stored else None
    store.save("others", "1", None)
    status, code = answer
    left = [code]

    def answered(**_):
        if left:
            left.pop()
            body = f"<Error><Code>{code}</Code><Message>again</Message></Error>" if code else ""
            return AWSResponse("http://s3", status, {"content-type": "application/xml"}, Raw(body.encode()))
        return None

    store._client.meta.events.register("before-send.s3.PutObject", answered)
    saved = store.save("orders", "2", first and first.version)
    assert not left
    assert store.load("orders") == saved


def test_no_checksum_is_sent_as_a_trailer(served):
    """boto3 sends one over TLS, which many servers with the API of S3 refuse."""
    store = open_checkpoint_store("s3://bucket/p?region=eu-west-1&endpoint_url=https://s3.example.test")
    sent = []

    def answered(request, **_):
        sent.append({name.lower() for name in request.headers})
        return AWSResponse(request.url, 400, {"content-type": "application/xml"}, Raw(b"<Error/>"))

    store._client.meta.events.register("before-send.s3.PutObject", answered)
    refusal(store.save, "orders", "1", None)
    assert sent
    assert not sent[0] & {"x-amz-trailer", "content-encoding", "transfer-encoding"}


XML = {"content-type": "application/xml"}


def error(request, status, code):
    body = f"<Error><Code>{code}</Code><Message>it is so</Message></Error>"
    return AWSResponse(request.url, status, XML, Raw(body.encode()))


def test_a_bucket_with_object_lock_gets_a_digest_of_the_body(served):
    """apache/arrow-rs-object-store#190: S3 refuses a write without one if objects are locked by default."""
    store = opened(served, f"locked-{uuid4().hex}")

    def answered(request, **_):
        if "Content-MD5" not in request.headers:
            return error(request, 400, "InvalidRequest")
        return None  # moto compares the digest

    store._client.meta.events.register("before-send.s3.PutObject", answered)
    first = store.save("orders", "1", None)
    assert store.save("orders", "2", first.version).token == "2"


def quotes_are_refused(store, bare):
    """Let the service refuse the right tag in quotes, and do this with a request that has it without them."""

    def answered(request, **_):
        tag = request.headers.get("If-Match")
        if tag is None:
            return None
        tag = tag.decode() if isinstance(tag, bytes) else tag
        return error(request, 412, "PreconditionFailed") if tag.startswith('"') else bare(request, tag)

    store._client.meta.events.register("before-send.s3.PutObject", answered)


def compared(request, tag):
    del request.headers["If-Match"]
    request.headers["If-Match"] = f'"{tag}"'  # what moto compares; it does not look at signatures


def ignored(request, tag):
    del request.headers["If-Match"]


def refused_too(request, tag):
    return error(request, 412, "PreconditionFailed")


class TestTagsInQuotes:
    """block/buzz#3002, slatedb/slatedb#1818: Ceph and DigitalOcean Spaces take a tag without quotes only."""

    def test_such_a_service_keeps_a_checkpoint(self, served):
        store = opened(served, f"bare-{uuid4().hex}")
        first = store.save("orders", "1", None)
        quotes_are_refused(store, compared)
        second = store.save("orders", "2", first.version)
        assert store.save("orders", "3", second.version).token == "3"
        assert refusal(store.save, "orders", "4", second.version).category == ErrorCategory.CONFLICT
        found = store._client.list_objects_v2(Bucket=PLACE, Prefix=store.place.rpartition("/")[2])
        assert [each["Key"].rpartition("/")[2] for each in found["Contents"]] == ["orders.checkpoint.json"]

    @pytest.mark.parametrize("bare", [ignored, refused_too])
    def test_a_service_that_compares_neither_form_is_refused(self, served, bare):
        store = opened(served, f"neither-{uuid4().hex}")
        first = store.save("orders", "1", None)
        quotes_are_refused(store, bare)
        found = refusal(store.save, "orders", "2", first.version)
        assert found.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert "refuses a write whose condition holds" in found.message
        assert refusal(store.save, "orders", "2", '1-0@"0"').category == ErrorCategory.CONFLICT
        assert store.load("orders") == first, "the form of tags that is ignored is not used"

    @pytest.mark.parametrize("everywhere", [True, False])
    def test_writes_that_meet_each_time_are_no_matter_of_form(self, served, everywhere):
        store = opened(served, f"met-{uuid4().hex}")
        first = store.save("orders", "1", None)

        def answered(request, **_):
            is_other = not everywhere and ".probe-" in request.url
            return None if is_other else error(request, 409, "ConditionalRequestConflict")

        store._client.meta.events.register("before-send.s3.PutObject", answered)
        found = refusal(store.save, "orders", "2", first.version)
        assert (found.category, found.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)


DIRECTORIES = ["mine--usw2-az1--x-s3", "mine--usw2-az1--xa-s3"]


def directory_bucket(name, session):
    """Return a store in a directory bucket, which answers to a session as told, and refuses digests."""
    client, stored, lock = boto3.client("s3", region_name="us-west-2"), {}, threading.Lock()

    def answered(request, **_):
        if "?session" in request.url:
            if isinstance(session, tuple):
                return error(request, *session)
            return AWSResponse(request.url, 200, XML, Raw(session.encode()))
        headers = {key.lower(): value for key, value in request.headers.items()}
        if "content-md5" in headers:
            return error(request, 501, "NotImplemented")
        with lock:  # a store refuses a service that compares and writes in two steps
            tag, path = stored.get(request.url), request.url
            if request.method == "DELETE":
                stored.pop(path, None)
                return AWSResponse(path, 204, {}, Raw(b""))
            if tag is not None if "if-none-match" in headers else headers["if-match"].decode() != tag:
                return error(request, 412, "PreconditionFailed")
            stored[path] = f'"{uuid4().hex[:16]}"'  # no MD5
            return AWSResponse(path, 200, {"etag": stored[path]}, Raw(b""))

    client.meta.events.register("before-send.s3", answered)
    return s3.S3CheckpointStore(f"s3://{name}/p", client)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_bucket_gets_no_digest_and_its_tags_are_taken_as_they_are(monkeypatch, name):
    """TileDB-Inc/TileDB#5226: it refuses Content-MD5, and an ETag is no MD5 there."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    members = {
        "SessionToken": "t",
        "SecretAccessKey": "s",
        "AccessKeyId": "a",
        "Expiration": f"{soon:%Y-%m-%dT%H:%M:%SZ}",
    }
    inner = "".join(f"<{key}>{value}</{key}>" for key, value in members.items())
    session = f"<CreateSessionResult><Credentials>{inner}</Credentials></CreateSessionResult>"
    store = directory_bucket(name, session)
    first = store.save("orders", "1", None)
    assert store.save("orders", "2", first.version).token == "2"


@pytest.mark.parametrize(
    ("answer", "category", "word"),
    [
        ((403, "AccessDenied"), ErrorCategory.AUTHORIZATION_FAILED, "s3express:CreateSession"),
        ((404, "NoSuchBucket"), ErrorCategory.NOT_FOUND, "name of the bucket"),
        ((400, "InvalidRequest"), ErrorCategory.INVALID_REQUEST, "InvalidRequest"),
    ],
)
def test_a_session_of_a_directory_bucket_that_is_refused_is_an_answer_of_the_store(answer, category, word):
    found = refusal(directory_bucket(DIRECTORIES[0], answer).save, "orders", "1", None)
    assert found.category == category
    assert word in found.message


class Raw:
    """The body of an answer that no server sent."""

    def __init__(self, body):
        self.body = body

    def stream(self, **_):
        yield self.body

    def read(self, *_):
        body, self.body = self.body, b""
        return body


@pytest.mark.parametrize("announced", [None, 1 << 40])
def test_an_object_is_read_up_to_the_bound_of_a_checkpoint(served, monkeypatch, announced):
    """Whoever can write the object, or stands between, may send whatever fills the memory."""
    store = opened(served, f"large-{uuid4().hex}")
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(s3, "MOST_BYTES", 1 << 20)
    endless = Endless()
    headers = {"content-type": "application/json", "etag": '"1"'}
    if announced is not None:
        headers["content-length"] = str(announced)
    store._client.meta.events.register(
        "before-send.s3.GetObject", lambda request, **_: AWSResponse(request.url, 200, headers, endless)
    )
    assert refusal(store.load, "orders").message.startswith(
        f"checkpoint {store.place}/orders.checkpoint.json: has more"
    )
    assert endless.read_bytes < 3 << 20


class Endless:
    """A body that never ends; botocore reads it like that of urllib3."""

    read_bytes = 0

    def read(self, amount=None):
        assert amount is not None, "the whole body was asked for"
        self.read_bytes += amount
        return bytes(amount)

    def close(self):
        """Close nothing."""

    def release_conn(self):
        """Release nothing."""


def test_a_given_client_is_refused_in_another_process(monkeypatch):
    store = s3.S3CheckpointStore("s3://bucket/path", client=object())
    monkeypatch.setattr("multiclouddb_api.process.os.getpid", lambda: 0)
    with pytest.raises(MulticloudDbError, match="made in another process") as refused:
        store.load("orders")
    assert refused.value.category == ErrorCategory.INVALID_REQUEST
