"""Reads where a run takes place: what `connect` takes, or the name of a variable that has the URL."""

from __future__ import annotations

import os
from typing import Final

from multiclouddb_api import ClientConfig, invalid_request
from multiclouddb_api.client import to_config
from multiclouddb_api.config import SecretText
from multiclouddb_api.redaction import redact_url

__all__ = ["check_storable", "storable", "url_of"]

_VARIABLE: Final = "env:"


def url_of(source: str) -> str:
    """Return the URL that a source names.

    Args:
        source: A URL; the path of a TOML file whose `[connection]` has a `url`; or `env:NAME` for a URL in
            the variable `NAME`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the variable is not set, or the file cannot be used.
    """
    if source.startswith(_VARIABLE):
        name = source.removeprefix(_VARIABLE)
        found = os.environ.get(name)
        if not found:
            raise invalid_request("URL", f"needs the variable {name}, which is not set", f"set {name}")
        return SecretText(found)
    if "://" in source or not source.endswith(".toml"):
        return SecretText(source)
    config = to_config(source)
    url = config.connection.get("url")
    if not isinstance(url, str) or config != ClientConfig.from_url(url):
        raise invalid_request(
            "URL",
            f"{source} has other settings than the provider and connection.url",
            'write everything into the URL of the file, which may be { env = "NAME" }',
        )
    return url


def storable(source: str) -> str:
    """Return the source as a drill stores it: the path of a file is made absolute.

    Args:
        source: What `url_of` takes.
    """
    is_file = "://" not in source and source.endswith(".toml")
    return os.path.abspath(source) if is_file else source


def check_storable(source: str) -> None:
    """Refuse a URL that may contain a secret, because it would be stored in a file.

    Args:
        source: What `url_of` takes.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if it is such a URL.
    """
    if "://" in source and redact_url(source) != source:
        raise invalid_request(
            "URL",
            "may contain a password, and a drill is stored in a folder",
            "put the URL into a variable and write env:NAME, or into the connection.url of a TOML file",
        )
