"""Keeps the lineages of the last tokens that this process wrote, so that it need not parse these tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import ClassVar, Final

import attrs

from multiclouddb_spi.continuation.lineage import Lineage, Rules
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import Envelope, decode_token

__all__ = ["Written", "WrittenTokens"]

_MOST_TOKENS: Final = 64
_MOST_ENTRIES: Final = 100_000


@attrs.frozen(eq=False)
class Written:
    """A token that this process wrote.

    Attributes:
        envelope: The token without its state.
        state: The state. Only the call that has taken the token may change the state.
    """

    envelope: Envelope
    state: Lineage

    def lineage(self, rules: Rules) -> Lineage:
        """Return the state; parsing the token would give an equal state.

        Args:
            rules: The feed.

        Raises:
            InvalidCursor: Raised if partitions wait for each other. Parsing the token would raise
                the same error.
        """
        self.state.rules = rules
        if self.state.waiting():
            self.state.check_waits()
        return self.state


class WrittenTokens:
    """Keeps the lineage of each token until the token is used.

    A consumer that reads page after page uses each token once. If a consumer uses a token a second
    time, the library parses the token.

    Attributes:
        checks: True to compare each kept lineage with the content of its token; only tests set
            this.
    """

    checks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._written: OrderedDict[str, Written] = OrderedDict()
        self._entries = 0
        self._lock = threading.Lock()

    def keep(self, token: str, envelope: Envelope, lineage: Lineage) -> None:
        """Keep the lineage of a token; the lineage must not be changed after this call.

        Args:
            token: The token.
            envelope: Its content.
            lineage: The lineage that the token contains.
        """
        with self._lock:
            if token not in self._written:  # the same token has the same entries
                self._entries += len(lineage)
            self._written[token] = Written(attrs.evolve(envelope, state=None), lineage)
            while len(self._written) > _MOST_TOKENS or self._entries > _MOST_ENTRIES:
                self._entries -= len(self._written.popitem(last=False)[1].state)

    def take(self, token: str) -> Written | None:
        """Remove and return the lineage of a token, or return None if it is not kept."""
        with self._lock:
            written = self._written.pop(token, None)
            if written is not None:
                self._entries -= len(written.state)
        if written is not None and self.checks:
            _check(token, written)
        return written


def _check(token: str, written: Written) -> None:
    parsed = decode_token(token)
    state = state_from_json(parsed.state, written.state.rules)
    assert attrs.evolve(parsed, state=None) == written.envelope, "a token differs from what was kept"
    assert isinstance(state, Lineage)
    assert list(state) == list(written.state), "a token differs from the lineage that was kept"
    assert state.audited == written.state.audited
