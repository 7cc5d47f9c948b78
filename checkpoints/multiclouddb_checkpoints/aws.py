"""What the stores on AWS share: clients, and what boto3's errors mean."""

from __future__ import annotations

from typing import Any, Final

from multiclouddb_api import ErrorCategory
from multiclouddb_checkpoints.store import (
    ATTEMPTS,
    CONNECT_SECONDS,
    NO_ANSWER,
    READ_SECONDS,
    Answer,
    SharedCheckpointStore,
)
from multiclouddb_spi.connection import Location
from multiclouddb_spi.faults import Row, row_of_connection

WHO: Final = (
    "check what boto3's credential chain finds (aws sts get-caller-identity): environment, profile, role"
)
REGION: Final = Row(
    ErrorCategory.INVALID_REQUEST, "name the region: set AWS_DEFAULT_REGION, or add ?region=NAME to the URL"
)
_NOT_ACCEPTED: Final = Row(ErrorCategory.AUTHENTICATION_FAILED, WHO, confidential=True)
_THROTTLED: Final = Row(
    ErrorCategory.THROTTLED, "save less often (checkpoint_interval_seconds), or use more names"
)

CODES: Final = {
    **dict.fromkeys(
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "IncompleteSignatureException",
            "InvalidAccessKeyId",
            "InvalidSignatureException",
            "InvalidToken",
            "MissingAuthenticationTokenException",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
            "UnrecognizedClientException",
        ),
        _NOT_ACCEPTED,
    ),
    **dict.fromkeys(
        (
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
        ),
        _THROTTLED,
    ),
}


def code_of(error: Any) -> str | None:
    """Return the service's code; two threads that use a client first have two classes for one code."""
    code: str | None = error.response.get("Error", {}).get("Code")
    return code


class AwsCheckpointStore(SharedCheckpointStore):
    """The base of the stores that use boto3."""

    options = ("allow_plaintext", "endpoint_url", "region")

    def _service(self, service: str, location: Location, **settings: Any) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            **settings,
        )
        # A session of its own, because boto3's default session cannot make clients in two threads at once.
        return boto3.Session().client(
            service,
            endpoint_url=location.options.get("endpoint_url"),
            region_name=location.options.get("region"),
            config=config,
        )

    def _answer(self, error: Exception) -> Answer | Row | None:
        from botocore import exceptions as boto

        match error:
            case boto.ClientError():
                found = error.response.get("Error", {})
                status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
                return Answer(status, str(found.get("Code", status)), str(found.get("Message", "")))
            case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.ProfileNotFound():
                return _NOT_ACCEPTED
            case boto.CredentialRetrievalError() | boto.TokenRetrievalError() | boto.SSOError():
                return _NOT_ACCEPTED
            case boto.NoRegionError() | boto.InvalidRegionError():
                return REGION
            case boto.ConnectionError() | boto.HTTPClientError():
                return row_of_connection(error) or NO_ANSWER
            case _:
                return None
