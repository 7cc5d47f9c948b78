"""Keeps the token of an Entra ID identity, and replaces it when the service says that it has expired."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from azure.core.credentials import AccessToken

_EARLY_SECONDS: Final = 300
"""A token is replaced so many seconds before it expires, as azure-core does."""


class RenewableCredential:
    """A credential that azure-cosmos asks for a token before each request.

    azure-core keeps a token until the clock of this machine says that it expires, or until an answer has the
    status 401. Cosmos DB answers an expired token with 403/5300 (Azure/azure-sdk-for-python issue 45886), so
    that azure-core would keep it. Therefore this object keeps the token itself, and tells azure-core that the
    token has expired already.
    """

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._kept: dict[tuple[Any, ...], tuple[AccessToken, float]] = {}
        self._lock = threading.Lock()

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return the token for the next request."""
        with self._lock:
            kept, _ = self._kept.get(scopes, (None, 0.0))
            if kept is None or options or kept.expires_on - time.time() < _EARLY_SECONDS:
                kept = self._ask(scopes, options)
        return AccessToken(kept.token, 0)

    def renew(self, since: float) -> bool:
        """Ask for new tokens; return True if one differs from that of a call which began at `since`."""
        with self._lock:
            changed = False
            for scopes, (kept, asked) in list(self._kept.items()):
                changed |= asked > since or self._ask(scopes, {}).token != kept.token
            return changed

    def _ask(self, scopes: tuple[str, ...], options: dict[str, Any]) -> AccessToken:
        token: AccessToken = self._credential.get_token(*scopes, **options)
        self._kept[scopes] = token, time.monotonic()
        return token
