"""Prepares values for people to read: shortens them and removes secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

_VISIBLE = 12
_HIDDEN = "***"
# The patterns are text, because compiling them takes time that a program without an error would pay for.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
# A colon that is not followed by a port may be followed by a password. PORT, … and brackets occur in our own
# messages, which show the form of a URL.
_HOSTS = r"(?:\[[0-9A-Fa-f:.]*\]|:(?:[0-9]{1,5}|PORT)?(?=[\],:/]|\Z)|%2[Ff]|[\w.,…\[\]-])*+"
_PATH = r"(?:/[\w./ …\[\]-]*+:?)?"
# Our own messages contain links to pages in this form. A secret token in a fragment would follow a name and
# an =.
_PAGE = r"https?://[\w.-]+/[\w./-]*+#[\w-]*"
_PLACE = r"([^/?#&;]*)([^?#&;]*)"
_OPTION_NAME = r"[A-Za-z][A-Za-z0-9_.]*"
_SWITCH = r"(?i:true|false)"
_WORD = r"[\w.-]*"
_HARMLESS = {
    "allow_plaintext": _SWITCH,
    "change_stream": _WORD,
    "emulator_host": _HOSTS,
    "endpoint_url": rf"https?://{_HOSTS}/?",
    "profile": _WORD,
    "replicaset": _WORD,
    "retryreads": _SWITCH,
    "tls": _SWITCH,
}
# The only harmless option whose value may contain an @; no other option comes before it.
_ENDPOINT_USER = r"[^?#&;@]*\?endpoint_url=[^?#&;=]*"


def shorten(value: object) -> str:
    """Return the repr of a token or a document; if the repr is long, return only its first characters."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= 4 * _VISIBLE:
        return repr(value)
    return f"'{text[:_VISIBLE]}…' ({len(text)} characters)"


def redact_url(url: str) -> str:
    """Return the URL without user, password, fragment, and option values that may be secrets.

    In case of doubt, the function hides text: everything that is not a URL, and a host or path that may
    belong to an unescaped password.
    """
    found = re.match(_SCHEME, url)
    if found is None:
        return _HIDDEN
    if re.fullmatch(_PAGE, url):
        return url
    scheme, rest = found.group(), url[found.end() :]
    if scheme.lower() == "embedded://" and rest.startswith("/"):
        # A file name does not contain a user or a password.
        path = re.split("[?#]", rest, maxsplit=1)[0]
        return scheme + path + _redact_options(rest[len(path) :])
    # Hide everything up to the last @, because users forget to escape @, /, ? and # in a password.
    front, at, tail = rest.rpartition("@")
    if at and _is_in_options(front):
        return scheme + _HIDDEN
    place = re.match(_PLACE, tail)
    assert place is not None  # the pattern matches any text
    hosts = place[1] if re.fullmatch(_HOSTS, place[1]) else _HIDDEN
    path = place[2] if re.fullmatch(_PATH, place[2]) else f"/{_HIDDEN}"
    user = f"{_HIDDEN}@" if at else ""
    return scheme + user + hosts + path + _redact_options(tail[place.end() :])


def _is_in_options(front: str) -> bool:
    """Return True if an option or a fragment may contain the @ that follows `front`."""
    place = re.match(_PLACE, front)
    assert place is not None
    options = front[place.end() :]
    if not options or re.fullmatch(_ENDPOINT_USER, front):
        return False
    is_whole = re.fullmatch(_HOSTS, place[1]) is not None and re.fullmatch(_PATH, place[2]) is not None
    return is_whole or "=" in options or "@" in front


def _redact_options(text: str) -> str:
    query, mark, fragment = text.partition("#")
    options = query[1:]
    # MongoDB accepts either character between options. If one separates the options, the other is ordinary
    # text in a value.
    separator = "&" if "&" in options else ";"
    shown = separator.join(map(_redact_option, options.split(separator)))
    return query[:1] + shown + mark + (_HIDDEN if fragment else "")


def _redact_option(text: str) -> str:
    if not text.strip("…[]"):
        return text
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(_OPTION_NAME, name):
        return _HIDDEN
    pattern = _HARMLESS.get(name.lower())
    return f"{name}={value if pattern and re.fullmatch(pattern, value) else _HIDDEN}"


def rfc3339(moment: datetime) -> str:
    """Format an aware datetime as RFC 3339 text in UTC with `Z` and up to six fractional digits."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


_MOST_ROWS, _MOST_CHARACTERS = 50, 100


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table for a notebook; long cells are cut, and so are tables of more than 50 rows."""
    from html import escape  # needed only in notebooks

    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        return escape(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…")

    more = f", the first {_MOST_ROWS} shown" if len(rows) > _MOST_ROWS else ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>" for row in rows[:_MOST_ROWS]
    )
    return (
        f"<table><caption>{escape(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
