"""What the stores on AWS share: clients, and what boto3's errors mean."""

from __future__ import annotations

import re
from json import JSONDecodeError
from typing import Any, Final

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_checkpoints.store import (
    ATTEMPTS,
    CONNECT_SECONDS,
    NO_ANSWER,
    READ_SECONDS,
    Refusal,
    SharedCheckpointStore,
)
from multiclouddb_spi.connection import Location
from multiclouddb_spi.faults import UNAVAILABLE, FaultRule, clock_row, row_of_clock, row_of_connection
from multiclouddb_spi.machine_role import MachineRole, aws_fails

WHO: Final = (
    "check what boto3's credential chain finds (aws sts get-caller-identity): environment, profile, role"
)
REGION: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST, "name the region: set AWS_DEFAULT_REGION, or add ?region=NAME to the URL"
)
_NOT_ACCEPTED: Final = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, WHO, confidential=True, renewable=True)
# A new client is made for the next attempt, because boto3's keeps that it has found no credentials.
_ROLE_LATE: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE,
    f"the machine's metadata service, which has them, fails; try again; if that does not help, {WHO}",
    renewable=True,
)
_ROLE: Final = MachineRole(aws_fails)
_THROTTLED: Final = FaultRule(
    ErrorCategory.THROTTLED, "save less often (checkpoint_interval_seconds), or use more names"
)

_AUTHENTICATION: Final = ErrorCategory.AUTHENTICATION_FAILED
_SETTINGS: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "check boto3's settings that this text names: variables (AWS_…), the profile, the options of the URL",
)
_LATE: Final = ("RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture")
# CreateSession is that of a directory bucket.
_OPERATIONS: Final = (
    *("GetObject", "PutObject", "DeleteObject", "CreateSession"),
    *("GetItem", "PutItem", "DeleteItem"),
)
_CREDENTIALS: Final = (
    "LoginAuthorizationCodeError",
    "LoginError",
    "LoginInsufficientPermissions",
    "LoginRefreshRequired",
    "LoginTokenLoadError",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "RefreshWithMFAUnsupportedError",
    "TokenRetrievalError",
    "UnknownCredentialError",
    "UnknownTokenProviderError",
)

AWS_HOST: Final = re.compile(
    r".+\.(amazonaws\.com(\.cn)?|amazonaws\.eu|api\.aws|api\.amazonwebservices\.com\.cn)"
)
"""The hosts of AWS."""

CODES: Final = {
    **dict.fromkeys(
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "IncompleteSignatureException",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "InvalidToken",
            "MissingAuthenticationTokenException",
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
            "TooManyRequestsException",
        ),
        _THROTTLED,
    ),
    # STS could not reach the provider of an identity.
    "IDPCommunicationError": UNAVAILABLE,
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

    def _answer(self, error: Exception) -> Refusal | FaultRule | None:
        from botocore import exceptions as boto

        match error:
            case boto.ClientError():
                found = error.response.get("Error", {})
                metadata = error.response.get("ResponseMetadata", {})
                status, text = int(metadata.get("HTTPStatusCode", 0)), str(found.get("Message", ""))
                code = str(found.get("Code", status))
                if (late := row_of_clock(text)) is not None:
                    return attrs.evolve(late, renewable=True)
                if code in _LATE:
                    date = metadata.get("HTTPHeaders", {}).get("date")
                    late = clock_row(found.get("RequestTime"), found.get("ServerTime") or date)
                    return attrs.evolve(late, renewable=True)
                if error.operation_name not in _OPERATIONS and code not in CODES and status < 500:
                    # boto3 asks other services for credentials, for example STS.
                    return FaultRule(_AUTHENTICATION, WHO)
                return Refusal(status, code, text)
            case boto.CredentialRetrievalError() | boto.MetadataRetrievalError():
                return FaultRule(ErrorCategory.TRANSIENT_FAILURE, f"try again; if that does not help, {WHO}")
            case boto.NoRegionError() | boto.InvalidRegionError():
                return REGION
            case boto.ConnectionError() | boto.HTTPClientError():
                return row_of_connection(error) or NO_ANSWER
            case boto.ChecksumError() | boto.FlexibleChecksumError() | boto.IncompleteReadError():
                return FaultRule(ErrorCategory.TRANSIENT_FAILURE, "the answer arrived damaged; try again")
            case boto.NoCredentialsError() if _ROLE.is_down():
                return _ROLE_LATE
            case boto.BotoCoreError() if type(error).__name__ in _CREDENTIALS or isinstance(
                error, boto.SSOError | boto.InvalidConfigError
            ):
                return FaultRule(_AUTHENTICATION, WHO)
            case boto.BotoCoreError():
                return _SETTINGS
            case FileNotFoundError() | PermissionError() | JSONDecodeError():
                # A program or a file that the profile names.
                return FaultRule(_AUTHENTICATION, WHO)
            case _:
                return None
