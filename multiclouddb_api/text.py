"""How values are shown to people: shortened, without secrets."""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = ["redact_url", "rfc3339", "shorten"]

_VISIBLE = 12
# To the last @, because people forget to escape the one in a password, or its / ? and #.
_USERINFO = re.compile(r"(?<=://)(?!/).*@", re.DOTALL)
_QUERY_VALUE = re.compile(r"(?<=[?&])([^=&#]+)=([^&#]*)")
_HARMLESS_QUERY = frozenset({"profile", "tls", "replicaSet", "retryReads", "endpoint_url"})


def shorten(value: object) -> str:
    """A repr cut to its first characters, for tokens and documents."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= 4 * _VISIBLE:
        return repr(value)
    return f"'{text[:_VISIBLE]}…' ({len(text)} characters)"


def redact_url(url: str) -> str:
    """The URL without user, password and query values that may be secrets."""

    def hide(match: re.Match[str]) -> str:
        name, value = match.groups()
        return f"{name}={value if name in _HARMLESS_QUERY else '***'}"

    return _QUERY_VALUE.sub(hide, _USERINFO.sub("***@", url))


def rfc3339(moment: datetime) -> str:
    """An aware datetime as RFC 3339 text in UTC with `Z` and up to six fractional digits."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
