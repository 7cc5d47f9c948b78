"""Checks authorization. A signature must use the account's key, and any bearer token is accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
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

    def check(self, request: Request, segments: list[str]) -> None:
        """Refuse a request that is not signed with the account's key."""
        text = request.headers.get("authorization", "")
        fields = dict(part.partition("=")[::2] for part in unquote(text).split("&"))
        if not fields.get("sig"):
            raise _unauthorized(
                "Required Header authorization is missing. Ensure a valid Authorization token is passed."
            )
        if fields.get("type") == "aad":
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
    if len(segments) % 2 == 0:
        kind, owner = segments[-2], segments
    else:
        kind, owner = segments[-1], segments[:-1]
    return [(kind, "/".join(owner)), (kind, owner[-1].lower() if owner else "")]
