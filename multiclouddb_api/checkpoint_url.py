"""Opens the checkpoint store that a URL names, through the entry points of the installed distributions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote, urlsplit

from multiclouddb_api.checkpoint import CheckpointFile, CheckpointStore, FileCheckpointStore
from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError, check_type, invalid_request
from multiclouddb_api.registry import entry_points
from multiclouddb_api.validators import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP: Final = "multiclouddb.checkpoint_stores"
_EXTRAS: Final = {
    "azblob": "checkpoints-azure-blob",
    "dynamodb": "checkpoints-dynamo",
    "gs": "checkpoints-gcs",
    "s3": "checkpoints-s3",
    "sqlite": "embedded",
}
_FORM: Final = 'write "s3://bucket/prefix", "file:///folder", or pass FileCheckpointStore("checkpoints")'
_SUFFIX: Final = ".checkpoint.json"


def open_checkpoint_store(url: str) -> CheckpointStore:
    """Open the checkpoint store that a URL names.

    Nothing is read or written yet. The page *Share positions between machines* lists the URLs.

    Args:
        url: `file:///folder`, `sqlite:///path/checkpoints.db`, `s3://bucket/prefix`, `gs://bucket/prefix`,
            `azblob://account/container/prefix` or `dynamodb://table/prefix`. It never contains credentials.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the text is not such a URL, or if the package of this store
            is not installed.
    """
    check_type("url", url, str)
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise invalid_request("checkpoint_store", "is text without a scheme", _FORM)
    if scheme == "file":
        return FileCheckpointStore(local_path_of(url))
    points = [point for point in entry_points(group=GROUP) if point.name == scheme]
    if not points and scheme not in _EXTRAS:
        known = suggestion(scheme, {"file", *_EXTRAS})
        raise invalid_request("checkpoint_store", f"has the unknown scheme {scheme!r}", known)
    advice = f'run: pip install "multiclouddb[{_EXTRAS.get(scheme, scheme)}]"'
    if not points:
        raise invalid_request("checkpoint_store", f"the store for {scheme}:// is not installed", advice)
    try:
        return cast("Callable[[str], CheckpointStore]", points[0].load())(url)
    except ImportError as error:
        raise MulticloudDbError(
            f"checkpoint_store: the store for {scheme}:// cannot be imported ({error}); {advice}",
            ErrorDetail(ErrorCategory.INVALID_REQUEST),
        ) from error


def local_path_of(url: str) -> str:
    """Return the path in a URL of a local store, which names no host and no options."""
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or len(parts.path) < 2:
        form = f"write {parts.scheme}:///path with three slashes"
        raise invalid_request("checkpoint_store", "must name a path on this machine, and nothing else", form)
    return unquote(parts.path)


def to_store(store: CheckpointStore | str | None) -> CheckpointStore | None:
    """Open a store that is named by its URL; return any other value unchanged."""
    return open_checkpoint_store(store) if isinstance(store, str) else store


def checkpoint_at(where: str | os.PathLike[str]) -> tuple[CheckpointStore, str]:
    """Return the store and the name of one checkpoint: of a file, or of the last part of a URL's path."""
    if not isinstance(where, str) or "://" not in where:
        file = CheckpointFile(where)
        return file, file.name
    url, mark, options = where.partition("?")
    store, _, name = url.rpartition("/")
    name = name.removesuffix(_SUFFIX)
    if not name or store.endswith("/"):
        raise invalid_request(
            "checkpoint", "is a URL that names no checkpoint", 'write "s3://bucket/prefix/NAME"'
        )
    return open_checkpoint_store(store + mark + options), name
