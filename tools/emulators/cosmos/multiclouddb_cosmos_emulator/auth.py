"""Checks authorization: a signature must use the account's key, and a bearer token must not have expired."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime
from urllib.parse import unquote

from multiclouddb_cosmos_emulator.errors import ServiceError
from multiclouddb_cosmos_emulator.message import Request

__all__ = ["WELL_KNOWN_KEY", "Guard"]

# The vendor's own emulators also use this key. Their documentation contains the key, so it protects nothing.
WELL_KNOWN_KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="


class Guard:
    """Checks the header `Authorization`.

    Args:
        key: The key of the account, in base64.
    """

    def __init__(self, key: str) -> None:
        try:
            self._key = base64.b64decode(key, validate=True)
        except ValueError:
            raise ValueError("the key has to be base64") from None
        self._tokens: set[str] = set()
        self._expired: dict[str, datetime] = {}

    def expire_tokens(self, now: datetime) -> int:
        """Refuse from now on every bearer token that a request has carried; return their number."""
        self._expired.update(dict.fromkeys(self._tokens - self._expired.keys(), now))
        return len(self._expired)

    def check(self, request: Request, segments: list[str]) -> None:
        """Refuse a request that is not signed with the account's key."""
        text = request.headers.get("authorization", "")
        fields = dict(part.partition("=")[::2] for part in unquote(text).split("&"))
        if not fields.get("sig"):
            raise _unauthorized(
                "Required Header authorization is missing. Ensure a valid Authorization token is passed."
            )
        if fields.get("type") == "aad":
            self._check_token(fields["sig"])
            return
        if fields.get("type") != "master":
            raise _unauthorized("The authorization token has a type that is neither master nor aad.")
        date = request.headers.get("x-ms-date", "").lower()
        for kind, link in _resources(segments):
            signed = f"{request.method.lower()}\n{kind}\n{link}\n{date}\n\n"
            digest = hmac.new(self._key, signed.encode(), hashlib.sha256).digest()
            if hmac.compare_digest(base64.b64encode(digest).decode(), fields["sig"]):
                return
        raise _unauthorized(
            "The input authorization token can't serve the request. The wrong key is being used or the "
            "expected payload is not built as per the protocol."
        )

    def _check_token(self, token: str) -> None:
        # The service answers 403/5300, and not 401: Azure/azure-sdk-for-python issue 45886. The text is the
        # one in Azure/azure-sdk-for-js issue 22620.
        self._tokens.add(token)
        since = self._expired.get(token)
        if since is not None:
            raise ServiceError(
                403,
                "Request blocked by Auth localhost : Provided AAD token has been expired since "
                f"[{since:%m/%d/%Y %I:%M:%S %p} (UTC)]. Please refresh the AAD token.",
                5300,
            )


def _unauthorized(text: str) -> ServiceError:
    return ServiceError(401, text)


def _resources(segments: list[str]) -> list[tuple[str, str]]:
    """Return the type and the link that a client signs.

    A client that uses resource ids signs only the last id of the link, in lower case.
    """
    if not segments:
        return [("", "")]
    if segments[-2:] == ["operations", "partitionkeydelete"]:
        return [("colls", "/".join(segments[:-2])), ("colls", segments[-3].lower())]
    if segments[4:5] == ["docs"] and len(segments) > 6:
        # The id of an item contains a slash, and a client signs the whole link.
        return [("docs", "/".join(segments))]
    if len(segments) % 2 == 0:
        kind, owner = segments[-2], segments
    else:
        kind, owner = segments[-1], segments[:-1]
    return [(kind, "/".join(owner)), (kind, owner[-1].lower() if owner else "")]
