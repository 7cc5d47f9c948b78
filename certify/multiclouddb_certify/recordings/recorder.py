"""Stores the exchanges of each test in a file of its own."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from multiclouddb_certify.private_files import make_private_folder, write_private
from multiclouddb_certify.recordings.hiding import Numbers, Veil
from multiclouddb_certify.recordings.rules import Codec
from multiclouddb_certify.wire import Call, WireResponse

__all__ = ["Recorder", "dumped", "file_name"]

_MOST_BYTES: Final = 100_000
_WIDTH: Final = 110
_ODD: Final = re.compile(r"[^\w.,=\[\]-]+")


def file_name(test: str) -> str:
    """Return the name of a test's file."""
    return f"{_ODD.sub('_', test.replace('::', '.'))[:120]}.yaml"


def dumped(value: Any) -> str:
    """Return a value as YAML; what contains only plain values stands on one line."""
    text: str = yaml.dump(
        value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=_WIDTH,
        allow_unicode=True, default_flow_style=None,
    )  # fmt: skip
    return text


class Recorder:
    """Sees what goes over the wire, and writes a file when a test ends.

    Args:
        folder: The folder of the files.
        codec: The service's part.
        secrets: What has to be hidden beside the codec's secrets: each text, and its name.
    """

    def __init__(self, folder: Path, codec: Codec, secrets: Mapping[str, str]) -> None:
        self._folder, self._codec = folder, codec
        self._veil = Veil(codec.rules, {**codec.secrets(), **secrets})
        self._lock = threading.Lock()
        # Exchanges that a test leaves open end later, and belong to no other test.
        self._exchanges: list[Callable[[], dict[str, Any]]] | None = None
        self._owner = os.getpid()

    def begin(self) -> None:
        """Begin a test."""
        with self._lock:
            self._exchanges = []

    def end(self, test: str) -> None:
        """Write the file of a test; a test that sent nothing has none."""
        with self._lock:
            exchanges, self._exchanges = self._exchanges, None
        if not exchanges:
            return
        numbers = Numbers(self._codec.rules)
        parts: list[str] = []
        for place, exchange in enumerate(exchanges):
            try:
                text = dumped([numbers.over(self._veil.over(exchange()))])
            except Exception as error:  # noqa: BLE001 - no answer of a service may end a run that is paid for
                text = dumped([{"cut": f"an exchange that cannot be read: {type(error).__name__}"}])
            if sum(map(len, parts)) + len(text) > _MOST_BYTES:
                parts.append(dumped([{"cut": f"{len(exchanges) - place} further exchanges"}]))
                break
            parts.append(text)
        make_private_folder(self._folder)
        write_private(self._folder / file_name(test), "".join(parts))

    def asked(self, call: Call) -> None:
        """Take note of nothing: an exchange is stored when it ends."""

    def answered(self, call: Call, answer: WireResponse) -> None:
        """Read an exchange of the present test."""
        exchanges = self._exchanges
        # A process that a test forks has no file.
        if exchanges is None or os.getpid() != self._owner:
            return

        def store(exchange: Callable[[], dict[str, Any]]) -> None:
            with self._lock:
                exchanges.append(exchange)

        self._codec.read(call, answer, store)
