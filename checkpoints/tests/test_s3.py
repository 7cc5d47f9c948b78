"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

from uuid import uuid4

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
