"""Hides secrets and names everywhere, and replaces values that differ in every run by placeholders."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from multiclouddb_certify.recordings.rules import (
    EMPTY,
    MOST_CHARACTERS,
    PLAIN,
    WORDS,
    Rules,
    moment_of,
    shape,
)

__all__ = ["PATTERNS", "Numbers", "Veil", "leaks"]

PATTERNS: Final[Mapping[str, str]] = {
    "arn": r"arn:aws[\w-]*:[^\s\"',}\])]+",
    "access key": r"\b(?:AKIA|ASIA|AIDA|AROA)[0-9A-Z]{16}\b",
    "account id": r"(?<![\w.-])\d{12}(?![\w.-])",
    "signature": r"(?i)\bsig(?:nature)?(?:=|%3d)[\w%+/=-]{16,}",
    "bearer": r"(?i)\bbearer [\w.~+/=-]{16,}",
    "web token": r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
    "key": r"(?<![\w+/=])[A-Za-z0-9+/]{86}==",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "user info": r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
    "mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]+",
    "host": (
        r"(?i)\b(?:[a-z0-9][a-z0-9-]{0,62}\.)+(?:amazonaws\.com|documents\.azure\.com|mongodb\.net|googleapis\.com"
        r"|azure\.com|internal|local)(?:\.cn)?(?::\d+)?\b"
        r"|\blocalhost:\d+|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?(?![\w.])"
    ),
}
"""What no recording contains, whatever the service: each placeholder, and the text that it stands for."""
_ID: Final = re.compile(r"(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_LEAST: Final = 4
_KEPT: Final = 200


class Veil:
    """Hides secrets and names in every text, keys of objects included.

    Args:
        rules: The rules of the service.
        secrets: Further texts, and the names of their placeholders.
    """

    def __init__(self, rules: Rules, secrets: Mapping[str, str]) -> None:
        self._rules = rules
        # A shorter text would be replaced inside of other words.
        known = sorted((each for each in secrets if len(each) >= _LEAST), key=len, reverse=True)
        self._secrets = {each: f"<{secrets[each]}>" for each in known}
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._patterns = [(re.compile(pattern), f"<{name}>") for name, pattern in PATTERNS.items()]

    def text(self, text: str) -> str:
        """Return a text without what is hidden, and cut if it is long."""
        size = len(text)
        # What is cut need not be searched; a secret may begin before the cut and end after it.
        text = text[: 2 * MOST_CHARACTERS]
        if self._known is not None:
            text = self._known.sub(lambda found: self._secrets[found[0]], text)
        for pattern, name in self._patterns:
            text = pattern.sub(name, text)
        return text if size <= MOST_CHARACTERS else f"{text[:_KEPT]}<cut: {size - _KEPT} characters>"

    def over(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return a tree without what is hidden. Values that differ in every run are left for `Numbers`."""
        match value:
            case dict():
                return {
                    self.text(name): self.over(each, (*path, name))
                    for name, each in value.items()
                    if not self._rules.is_dropped((*path, name))
                }
            case list():
                return [self.over(each, (*path, str(place))) for place, each in enumerate(value)]
            case str() if self._rules.kind(path) in (None, WORDS):
                return self.text(value)
            case _:
                return value


class Numbers:
    """Replaces each value that differs in every run by its placeholder, in the order of their first use."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._moments: list[tuple[datetime, str]] = []

    def over(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return a tree with placeholders."""
        kind = self._rules.kind(path)
        match value:
            case list():
                return [self.over(each, (*path, str(place))) for place, each in enumerate(value)]
            case _ if kind not in (None, WORDS) and value not in EMPTY and shape(value) not in PLAIN:
                return self._placeholder(str(kind), value, is_asked=path[0] == "request")
            case dict():
                return {name: self.over(each, (*path, name)) for name, each in value.items()}
            case str() if kind == WORDS:
                return _ID.sub(lambda found: self._placeholder("activity", found[0], is_asked=False), value)
            case _:
                return value

    def _placeholder(self, kind: str, value: Any, *, is_asked: bool) -> str:
        key = kind, json.dumps(value, sort_keys=True)
        if key not in self._known:
            moment = moment_of(value)
            if is_asked and moment is not None and self._moments:
                # The client computed it: it is said as a distance from a time that the service told.
                before = [each for each in self._moments if each[0] <= moment]
                base, name = max(before) if before else min(self._moments)
                return f"{name}{(moment - base).total_seconds():+.6f}s"
            self._counts[kind] += 1
            form = shape(value)
            self._known[key] = f"<{kind} {self._counts[kind]}{', ' if form else ''}{form}>"
            if moment is not None:
                self._moments.append((moment, self._known[key]))
        return self._known[key]


def leaks(text: str, secrets: Mapping[str, str]) -> Iterator[str]:
    """Return the names of what must not be in a recording, but is.

    Args:
        text: The text of a file.
        secrets: What must not be in it, beside `PATTERNS`: each text, and its name.
    """
    for secret, name in secrets.items():
        if len(secret) >= _LEAST and secret in text:
            yield name
    for name, pattern in PATTERNS.items():
        if re.search(pattern, text):
            yield name
