"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

from uuid import uuid4

import pytest
from botocore.awsrequest import AWSResponse

from multiclouddb_api import open_checkpoint_store
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)

from .stores import opened
from .trouble import TestExceptionClasses, TestIgnoredConditions, TestTrouble  # noqa: F401

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
