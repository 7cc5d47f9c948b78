"""Keeps checkpoints in Azure Blob Storage, with a match of ETags."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

from multiclouddb_api import ErrorCategory, ErrorReason, invalid_request
from multiclouddb_api.checkpoint import MOST_BYTES
from multiclouddb_checkpoints.store import (
    ATTEMPTS,
    CONNECT_SECONDS,
    FOREIGN,
    MET,
    NO_ANSWER,
    READ_SECONDS,
    Advice,
    ForeignError,
    Refusal,
    RefusedError,
    SharedCheckpointStore,
)
from multiclouddb_spi.connection import Location
from multiclouddb_spi.faults import UNAVAILABLE, FaultRule, row_of_connection, row_of_status

_KEY: Final = "AZURE_STORAGE_KEY"
_WHO: Final = f"check {_KEY}, or what azure-identity finds (az login, managed identity)"
_NOT_ACCEPTED: Final = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _WHO, confidential=True, renewable=True)
_REFUSED: Final = ("BlobAlreadyExists", "ConditionNotMet", "BlobNotFound")
_LEASED: Final = FaultRule(
    ErrorCategory.CONFLICT,
    "another process holds a lease on the blob; end it there, or run: az storage blob lease break",
    reason=ErrorReason.OTHER_WRITER,
)


class AzureBlobCheckpointStore(SharedCheckpointStore):
    """Keeps each checkpoint in one blob, whose ETag is the condition of the next write.

    The account's key comes from the environment variable `AZURE_STORAGE_KEY`. Without it, azure-identity
    finds an identity, which needs the role *Storage Blob Data Contributor*.

    Args:
        url: `azblob://account/container/prefix`, with `?endpoint_url=` for another cloud.
        client: `azure.storage.blob.ContainerClient` of the application, or None.
    """

    scheme = "azblob"
    form = "write azblob://ACCOUNT/CONTAINER/PREFIX"
    extra = "multiclouddb[checkpoints-azure-blob]"
    other_tag = '"0x1"'
    # The library sends more than 64 MiB as blocks with a list of them, whose conditions cloudemu ignored
    # (stackshy/cloudemu#699).
    large_from = (64 << 20) + 1
    options = ("allow_plaintext", "endpoint_url")
    advice = Advice(
        _WHO,
        "grant the role Storage Blob Data Contributor on the container, and check the account's firewall",
        "check the names of the account and the container",
    )
    meanings: ClassVar = {
        "AuthenticationFailed": _NOT_ACCEPTED,
        "InvalidAuthenticationInfo": _NOT_ACCEPTED,
        **dict.fromkeys(
            ("LeaseAlreadyPresent", "LeaseIdMismatchWithBlobOperation", "LeaseIdMissing", "LeaseLost"),
            _LEASED,
        ),
        # A large blob is read in several calls, and another writer has replaced it in between.
        "ConditionNotMet": MET,
        "ServerBusy": FaultRule(ErrorCategory.THROTTLED, "save less often, or use more names"),
        **dict.fromkeys(("AccountBeingCreated", "ContainerBeingDeleted", "OperationTimedOut"), UNAVAILABLE),
    }

    def _check(self, location: Location) -> None:
        if not self._path:
            raise invalid_request("checkpoint_store", "names no container", self.form)

    @property
    def _container(self) -> str:
        return self._path.partition("/")[0]

    def _connect(self) -> Any:
        from azure.storage.blob import ContainerClient

        account = self._location.host
        endpoint = self._location.options.get("endpoint_url", f"https://{account}.blob.core.windows.net")
        key = os.environ.get(_KEY, "").strip()
        credential: Any = {"account_name": account, "account_key": key}
        if not key:
            from azure.identity import DefaultAzureCredential

            credential = DefaultAzureCredential()
        return ContainerClient(
            endpoint,
            self._container,
            credential=credential,
            connection_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retry_total=ATTEMPTS - 1,
            initial_backoff=0.5,
            increment_base=1.5,
        )

    def _blob(self, key: str) -> Any:
        # The key begins with the container.
        return self._client.get_blob_client(key.partition("/")[2])

    def _read(self, key: str) -> tuple[bytes, str] | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            # As it is stored: the library would decompress a content that says that it is compressed.
            found = self._blob(key).download_blob(decompress=False)
            return found.read(MOST_BYTES + 1), str(found.properties.etag)
        except ResourceNotFoundError as error:
            if _code(error) != "BlobNotFound":
                raise
            return None
        except ValueError as error:  # an answer without the headers of a blob
            raise ForeignError(str(error)) from error

    def _write(self, key: str, body: bytes, tag: str | None) -> str:
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError

        condition: dict[str, Any] = {"overwrite": False}
        if tag is not None:
            condition = {
                "overwrite": True,
                "etag": tag,
                "match_condition": MatchConditions.IfNotModified,
            }
        try:
            done = self._blob(key).upload_blob(body, **condition)
        except HttpResponseError as error:
            if _code(error) in _REFUSED:
                raise RefusedError from error
            raise
        return str(done["etag"])

    def _delete(self, key: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            self._blob(key).delete_blob()
        except ResourceNotFoundError as error:
            if _code(error) != "BlobNotFound":
                raise

    def _answer(self, error: Exception) -> Refusal | FaultRule | None:
        from azure.core.exceptions import (
            AzureError,
            ClientAuthenticationError,
            HttpResponseError,
            ServiceRequestError,
            ServiceResponseError,
        )

        match error:
            case ClientAuthenticationError() if (
                not _code(error) and row_of_status(error.status_code or 0) is None
            ):
                return _NOT_ACCEPTED  # of Entra ID, which refuses an identity with 400 and 401
            case HttpResponseError() if error.status_code and error.status_code < 300:
                return FOREIGN  # the library expects 201 of a write
            case HttpResponseError() if error.status_code:
                return Refusal(error.status_code, _code(error) or str(error.status_code), error.reason or "")
            case ServiceRequestError() | ServiceResponseError():
                return row_of_connection(error) or NO_ANSWER
            case AzureError():
                return NO_ANSWER
            case _:
                return None


def _code(error: Any) -> str:
    """Return the error code of the service, which the library keeps as a member of an enum."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))
