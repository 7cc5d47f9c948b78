"""The client for `tail`.

If the first connection cannot work, the command fails soon, unless the user wants to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    Observer,
    OperationOptions,
)
from multiclouddb_cli.interrupt import Interrupt

__all__ = ["Contact"]

# Errors that may disappear if somebody starts a server, creates a resource or grants a permission.
_MAY_COME: Final = (
    ErrorCategory.NOT_FOUND,
    ErrorCategory.AUTHENTICATION_FAILED,
    ErrorCategory.AUTHORIZATION_FAILED,
)


class Contact:
    """Reads pages like a client, but connects at the first read, and lets a signal interrupt a read.

    Args:
        connect: A function that makes the client.
        interrupt: The handler of the signals.
        observer: The observer that receives the reports of outages.
        waits: True to keep trying until the first page, False to raise the first failure.
    """

    def __init__(
        self,
        connect: Callable[[], MulticloudDbClient],
        interrupt: Interrupt,
        observer: Observer,
        *,
        waits: bool,
    ) -> None:
        self.observer = observer
        self._connect, self._interrupt, self._waits = connect, interrupt, waits
        self._client: MulticloudDbClient | None = None
        self._has_read = False

    @property
    def client(self) -> MulticloudDbClient:
        """The client; this object closes it."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """Read one page.

        Raises:
            MulticloudDbError: The client's error; before the first page, the error is retryable only if
                waiting may help.
        """
        with self._interrupt.reading():
            try:
                page = self.client.read_changes(request, options)
            except MulticloudDbError as error:
                if self._has_read:
                    raise
                retryable = self._waits and (error.retryable or error.category in _MAY_COME)
                if error.retryable == retryable:
                    raise
                detail = attrs.evolve(error.detail, retryable=retryable)
                raise MulticloudDbError(error.message, detail) from error
        self._has_read = True
        return page

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
