"""Keeps checkpoints in Google Cloud Storage, with a match of generations."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from multiclouddb_api import ErrorCategory
from multiclouddb_api.checkpoint import MOST_BYTES
from multiclouddb_checkpoints.store import (
    CONNECT_SECONDS,
    FOREIGN,
    NO_ANSWER,
    READ_SECONDS,
    Advice,
    ForeignError,
    Refusal,
    RefusedError,
    SharedCheckpointStore,
    host_of,
)
from multiclouddb_spi.faults import FaultRule, row_of_connection
from multiclouddb_spi.machine_role import NO_GOOGLE_TOKENS, MachineRole, google_fails

# A policy of the organization that forbids a write has the status of a condition that does not hold.
_POLICY: Final = "constraint"
_TIMES: Final = (CONNECT_SECONDS, READ_SECONDS)
_RETRY_SECONDS: Final = 20.0
_WHO: Final = "check what google-auth finds (gcloud auth application-default login, or a service account)"
_LATE: Final = f"the machine's metadata server fails; try again; if that does not help, {_WHO}"
_ACCOUNT: Final = MachineRole(google_fails)
_NOT_ACCEPTED: Final = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _WHO, confidential=True, renewable=True)


class GcsCheckpointStore(SharedCheckpointStore):
    """Keeps each checkpoint in one object, whose generation is the condition of the next write.

    The identity needs `storage.objects.get` and `storage.objects.create`, and `storage.objects.delete` to
    replace an object. The service allows one write of an object a second, so do not save more often.

    Args:
        url: `gs://bucket/prefix`. `STORAGE_EMULATOR_HOST` names another endpoint.
        client: `google.cloud.storage.Client` of the application, or None.
    """

    scheme = "gs"
    form = "write gs://BUCKET/PREFIX"
    extra = "multiclouddb[checkpoints-gcs]"
    other_tag = "1"
    # The library sends more than 8 MiB as a resumable upload, for which fake-gcs-server and others had no
    # conditions (fsouza/fake-gcs-server#1967).
    large_from = (8 << 20) + 1
    keeps_conditions = re.compile(r"(.+\.)?googleapis\.com")
    advice = Advice(
        _WHO,
        "grant storage.objects.get, storage.objects.create and storage.objects.delete on the bucket",
        "check the name of the bucket",
    )

    def _connect(self) -> Any:
        from google.cloud.storage import Client

        return Client()

    def _host(self) -> str:
        return host_of(getattr(self._client, "api_endpoint", ""))

    def _blob(self, key: str) -> Any:
        return self._client.bucket(self._location.host).blob(key)

    def _times(self) -> dict[str, Any]:
        from google.cloud.storage.retry import DEFAULT_RETRY

        return {"timeout": _TIMES, "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)}

    def _read(self, key: str) -> tuple[bytes, str] | None:
        from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable

        blob = self._blob(key)
        try:
            # As it is stored: the library would decompress a content that says that it is compressed.
            body = blob.download_as_bytes(end=MOST_BYTES, raw_download=True, **self._times())
        except RequestRangeNotSatisfiable:
            body = b""  # what the service says about an empty object
        except NotFound as error:
            if not self._is_without_object(error):
                raise
            return None
        else:
            if blob.generation is None:
                raise ForeignError("an object without a generation")
        return body, str(blob.generation)

    def _write(self, key: str, body: bytes, tag: str | None) -> str:
        from google.api_core.exceptions import PreconditionFailed

        if tag is not None and not tag.isdecimal():
            raise RefusedError
        blob = self._blob(key)
        try:
            blob.upload_from_string(
                body, "application/json", if_generation_match=int(tag or 0), **self._times()
            )
        except PreconditionFailed as error:
            if _POLICY in _said(error):
                raise
            raise RefusedError from error
        return str(blob.generation)

    def _delete(self, key: str) -> None:
        from google.api_core.exceptions import NotFound

        try:
            self._blob(key).delete(**self._times())
        except NotFound as error:
            if not self._is_without_object(error):
                raise

    def _is_without_object(self, error: Any) -> bool:
        """Return True if a 404 says that there is no such object, and is not of the bucket or of a proxy."""
        said = _said(error).strip()
        if said.startswith("No such object: "):
            return True
        # fake-gcs-server says no more than this, and so does many a proxy.
        return said == "Not Found" and not self.keeps_conditions.fullmatch(self._host())

    def _answer(self, error: Exception) -> Refusal | FaultRule | None:
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import (
            DefaultCredentialsError,
            GoogleAuthError,
            RefreshError,
            TransportError,
        )
        from requests.exceptions import JSONDecodeError, RequestException

        match error:
            case RetryError() if isinstance(error.cause, Exception):
                return self._answer(error.cause)
            case GoogleAPICallError():
                status = int(error.code or 0)
                return Refusal(status, str(status), _said(error))
            case JSONDecodeError():
                return FOREIGN
            case TransportError() | RequestException():
                return row_of_connection(error) or NO_ANSWER
            case RefreshError() if error.retryable or NO_GOOGLE_TOKENS.search(str(error)):
                return NO_ANSWER
            case DefaultCredentialsError() if _ACCOUNT.is_down():
                return FaultRule(ErrorCategory.TRANSIENT_FAILURE, _LATE)
            case GoogleAuthError():
                return _NOT_ACCEPTED
            case _:
                # What a retry had last; the versions of the library name this class differently.
                last: int | None = getattr(getattr(error, "response", None), "status_code", None)
                return None if last is None else Refusal(last, str(last), "")


def _said(error: Any) -> str:
    """Return the service's own text, without the library's words around it."""
    try:
        text = str(error.response.text)
        return str(json.loads(text)["error"]["message"])
    except (AttributeError, TypeError, KeyError):
        return ""
    except ValueError:
        return text  # the answer to a download is no JSON
