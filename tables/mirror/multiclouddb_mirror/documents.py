"""Asks a feed for the documents of its changes, which a mirror cannot do without."""

from __future__ import annotations

import re
from typing import Final

from multiclouddb_api import (
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    NewItemStateMode,
    ProviderOptions,
)

__all__ = ["document_mode", "without_documents"]

_NO_DOCUMENTS: Final = re.compile(r"(?:new_item_state_mode|newItemState)=REQUIRE: (.*)", re.DOTALL)
_OR_WITHOUT: Final = ", or read with INCLUDE_IF_AVAILABLE"


def document_mode(
    client: MulticloudDbClient, begins: str, provider_options: ProviderOptions | None
) -> NewItemStateMode:
    """Return how documents are asked for: a feed that has none is refused before every row is copied.

    What comes after the copy may be about a time before the feed was set up; the table judges each change.

    Args:
        client: The client of the source.
        begins: `snapshot` if every row is copied.
        provider_options: The options of the provider.
    """
    if begins != "snapshot" or client.capabilities(provider_options).updates_may_lack_state:
        return NewItemStateMode.INCLUDE_IF_AVAILABLE
    return NewItemStateMode.REQUIRE


def without_documents(error: MulticloudDbError) -> MulticloudDbError:
    """Return the refusal of a feed without documents in the words of a mirror, or any other error itself.

    Args:
        error: The error of a read that requires documents.
    """
    found = _NO_DOCUMENTS.fullmatch(error.message)
    if error.category != ErrorCategory.UNSUPPORTED_CAPABILITY or found is None:
        return error
    told = found[1].removesuffix(_OR_WITHOUT)
    return MulticloudDbError(f"collection: a mirror needs the document of each change: {told}", error.detail)
