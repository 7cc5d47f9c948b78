"""Runs the emulator until it is interrupted. Start it with `python -m multiclouddb_cosmos_emulator`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY
from multiclouddb_cosmos_emulator.server import CosmosEmulator

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m multiclouddb_cosmos_emulator",
        description="A Cosmos DB account for azure-cosmos. All data is lost when the process ends.",
    )
    parser.add_argument("--host", default="localhost", help="the host to listen on (default: localhost)")
    parser.add_argument(
        "--port", type=int, default=8081, help="the port; 0 for any free port (default: 8081)"
    )
    parser.add_argument(
        "--key",
        default=WELL_KNOWN_KEY,
        help="the account key in base64 (default: the key of the vendor's emulators)",
    )
    parser.add_argument("--https", action="store_true", help="use TLS with a new self-signed certificate")
    parser.add_argument(
        "--no-all-versions",
        action="store_true",
        help="turn off the change feed with all versions and deletes",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve requests until interrupted, and return the exit code."""
    chosen = _parser().parse_args(arguments)
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    try:
        server = CosmosEmulator(
            chosen.host,
            chosen.port,
            key=chosen.key,
            https=chosen.https,
            all_versions=not chosen.no_all_versions,
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot serve {chosen.host}:{chosen.port}: {error}\n")
        return 1
    with server:
        lines = [f"endpoint     {server.endpoint}", f"key          {server.key}"]
        if server.certificate is not None:
            lines.append(f"certificate  {server.certificate}")
        sys.stdout.write("\n".join([*lines, "Interrupt with ctrl-C.", ""]))
        sys.stdout.flush()
        interrupted.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
