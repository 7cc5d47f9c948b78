"""Keeps checkpoints in Amazon S3, with conditional writes."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from multiclouddb_api import ErrorCategory
from multiclouddb_api.checkpoint import MOST_BYTES
from multiclouddb_checkpoints.aws import CODES, WHO, AwsCheckpointStore, code_of
from multiclouddb_checkpoints.store import MET, Advice, ForeignError, MetError, RefusedError
from multiclouddb_spi.faults import FaultRule

# 304 is what MinIO answered to a condition that does not hold until 2024 (minio/minio#19442); OVH says
# OperationAborted if two writes meet (apache/arrow-rs-object-store#138).
_REFUSED: Final = ("PreconditionFailed", "412", "304")
_MET: Final = ("ConditionalRequestConflict", "OperationAborted", "409")
# A bucket with Object Lock needs a digest, which a directory bucket (S3 Express) refuses with 501. The one of
# the header Content-MD5 is known to every server.
_DIRECTORY: Final = re.compile(r"--xa?-s3$")
_CHECKSUM: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "boto3 sends a checksum that this server does not take; set "
    "AWS_REQUEST_CHECKSUM_CALCULATION=when_required",
)


class S3CheckpointStore(AwsCheckpointStore):
    """Keeps each checkpoint in one object, whose ETag is the condition of the next write.

    The identity needs `s3:GetObject`, `s3:PutObject` and `s3:ListBucket`; `delete` needs `s3:DeleteObject`.
    For a directory bucket it needs `s3express:CreateSession` in place of them. A bucket with Object Lock
    keeps every version of a checkpoint.

    Args:
        url: `s3://bucket/prefix`, with `?region=` and `?endpoint_url=` if boto3 does not find them.
        client: `boto3.client("s3")` of the application, or None.
    """

    scheme = "s3"
    form = "write s3://BUCKET/PREFIX or s3://BUCKET/PREFIX?region=REGION"
    extra = "multiclouddb[checkpoints-s3]"
    other_tag = '"00000000000000000000000000000000"'
    advice = Advice(
        WHO,
        "grant s3:GetObject, s3:PutObject and s3:ListBucket: without ListBucket, S3 refuses to say that an "
        "object does not exist; for a directory bucket, grant s3express:CreateSession",
        "check the name of the bucket, and its region",
    )
    meanings: ClassVar = {**CODES, "XAmzContentSHA256Mismatch": _CHECKSUM, "OperationAborted": MET}

    def _other_form(self, tag: str) -> str:
        # Ceph and DigitalOcean Spaces refuse a tag in the quotes in which they give it (block/buzz#3002,
        # slatedb/slatedb#1818).
        return tag.strip('"')

    def _connect(self) -> Any:
        # From 1.36 on, boto3 sends a checksum as a trailer over TLS, which many servers with the API of S3
        # refuse (boto/boto3#4392). TLS protects the body, and the ETag names it.
        return self._service("s3", self._location, request_checksum_calculation="when_required")

    def _read(self, key: str) -> tuple[bytes, str] | None:
        client = self._client
        try:
            found = client.get_object(Bucket=self._location.host, Key=key)
        except client.exceptions.ClientError as error:
            if code_of(error) == "NoSuchKey":
                return None
            raise
        with found["Body"] as body:
            content = body.read(MOST_BYTES + 1)
            body.read(1)  # at the end, botocore compares the length with the announced one
            return content, _tag_of(found)

    def _write(self, key: str, body: bytes, tag: str | None) -> str:
        client, bucket = self._client, self._location.host
        more = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        if not _DIRECTORY.search(bucket):
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            more["ContentMD5"] = base64.b64encode(digest).decode()
        try:
            done = client.put_object(
                Bucket=bucket, Key=key, Body=body, ContentType="application/json", **more
            )
        except client.exceptions.ClientError as error:
            code = code_of(error)
            if code in _MET:
                raise MetError from error
            if code in _REFUSED or (code == "NoSuchKey" and tag is not None):
                raise RefusedError from error
            raise
        return _tag_of(_without_page(done))

    def _delete(self, key: str) -> None:
        _without_page(self._client.delete_object(Bucket=self._location.host, Key=key))


def _without_page(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer to a write; refuse a page of HTML, of which botocore reads the headers only."""
    metadata = answer.get("ResponseMetadata", {})
    headers = metadata.get("HTTPHeaders", {})
    kind = str(headers.get("content-type", ""))
    has_content = metadata.get("HTTPStatusCode") != 204 and headers.get("content-length") != "0"
    if has_content and kind.startswith("text/html"):
        raise ForeignError(f"an answer of the type {kind!r} to a write")
    return answer


def _tag_of(answer: Mapping[str, Any]) -> str:
    if not (tag := answer.get("ETag")):
        raise ForeignError("an answer without an ETag")
    return str(tag)
