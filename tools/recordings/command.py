"""Sends recordings to servers: `python -m recordings`.

It prints each difference with its test, and ends with 1 if one does not stand in `known.toml`.
With `--renew` it makes the recordings of the repository anew, from the local servers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.servers import server_module
from multiclouddb_certify.certification import load_certification
from multiclouddb_certify.recordings import Difference, Known, replay
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_dynamo_emulator import ScriptedStreams
from multiclouddb_spanner_emulator import Habits, ScriptedSpanner
from multiclouddb_spanner_emulator.google import google_emulator

__all__ = ["CHOSEN", "KNOWN", "RECORDINGS", "SERVERS", "differences", "is_missing", "main"]

RECORDINGS: Final = Path(__file__).parents[2] / "certify" / "tests" / "recordings"
KNOWN: Final = RECORDINGS / "known.toml"
_GOOGLE: Final = "Google's emulator"
_CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "a/secret/that/nobody/may/see",
}


@contextmanager
def _scripted_dynamo() -> Iterator[str]:
    with ScriptedStreams() as server:
        yield f"dynamo://eu-west-1?endpoint_url={server.endpoint_url}"


@contextmanager
def _dynamodb_local() -> Iterator[str]:
    local = server_module("dynamo", "local")
    with local.LocalDynamo() as server:
        yield f"dynamo://eu-west-1?endpoint_url={server.endpoint_url}"


@contextmanager
def _scripted_spanner() -> Iterator[str]:
    # As on Google's emulator, whose recordings are in the repository.
    with ScriptedSpanner(Habits(first_partition_only=True)) as server:
        server.create("projects/tests/instances/tests/databases/shop")
        yield f"spanner://tests/tests?emulator_host={server.host}"


@contextmanager
def _google_spanner() -> Iterator[str]:
    module = server_module("spanner", "emulator")
    server = module.Emulator(module.STILL)
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def _mongod() -> Iterator[str]:
    module = server_module("mongo", "mongod")
    with tempfile.TemporaryDirectory(dir=module.folder()) as made, module.ReplicaSet(Path(made)) as server:
        yield server.uri()


@contextmanager
def _cosmos_emulator() -> Iterator[str]:
    with CosmosEmulator() as server:
        yield f"cosmos://{server.endpoint.split('/')[2]}?tls=false"


SERVERS: Final[Mapping[str, Mapping[str, Callable[[], AbstractContextManager[str]]]]] = {
    "dynamo": {"scripted": _scripted_dynamo, "DynamoDB Local": _dynamodb_local},
    "spanner": {"scripted": _scripted_spanner, _GOOGLE: _google_spanner},
    "mongo": {"mongod": _mongod},
    "cosmos": {"emulator": _cosmos_emulator},
}
"""The servers of each service. The recordings of the repository come from the last of them."""
CHOSEN: Final[Mapping[str, str]] = {
    "spanner": (
        "test_the_beginning_has_everything or collection_that_is_not_there or test_bad_keys_are or "
        "(test_old_documents_are_whole and not include_if) or it_returns_the_current_row or "
        "an_unknown_partition or one_physical_partition_is_refused or a_partition_id_of_the_old_one or "
        "test_a_delete_arrives or mixed or (test_a_value_survives and decimal)"
    ),
    "mongo": (
        "test_the_beginning_has_everything or not_there or test_a_token_is_plain_ascii_text or "
        "now-collection or test_old_documents_are_whole or test_it_returns_the_current_row or "
        "test_a_delete_arrives or test_an_update_arrives or mixed or "
        "(test_a_value_survives and (bytes or decimal or datetime or uuid or 64))"
    ),
    "dynamo": (
        "test_the_beginning_has_everything or collection_that_is_not_there or a_token_is_plain_ascii_text or "
        "now-collection or a_feed_of_keys_has or (test_old_documents_are_whole and not include_if) or "
        "that_is_not_kept or the_native_record or test_bad_keys_are or it_returns_the_current_row or "
        "an_unknown_partition or test_a_delete_arrives or test_an_update_arrives or "
        "test_a_token_of_the_old_one or mixed or an_empty_collection_ends_at_once or "
        "(test_a_value_survives and (set or bytes or dollar or 64 or false or zero))"
    ),
}
"""The tests whose recordings are in the repository, as an expression like pytest's `-k`."""


def is_missing(server: str) -> bool:
    """Return True for Google's emulator if it is not installed here; CI has to have it."""
    return server == _GOOGLE and google_emulator() is None and os.environ.get("CI") != "true"


def differences(
    service: str, server: str, url: str, folder: Path
) -> tuple[list[Difference], list[Difference], Sequence[Mapping[str, str]]]:
    """Send the recordings of a folder; return the differences, those that are not known, and idle entries."""
    known = Known.of(KNOWN, service, server)
    codec = load_certification(url).codec(url)
    assert codec is not None
    found = list(replay(sorted(folder.glob("*.yaml")), codec, "mcdb-certify-replay"))
    unknown = [each for each in found if each not in known]
    return found, unknown, known.unused()


def _record(service: str, folder: Path, only: str) -> None:
    """Record tests on a local server."""
    with [*SERVERS[service].values()][-1]() as url, tempfile.TemporaryDirectory() as made:
        words = ["certify", url, "--account", "local", "--yes", "--only", only]
        words += ["--report", f"{made}/report", "--record", str(folder)]
        subprocess.run([sys.executable, "-m", "multiclouddb_cli", *words], cwd=made, check=True)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a difference is not known, otherwise 0."""
    parser = argparse.ArgumentParser(prog="make recordings", description=__doc__)
    parser.add_argument("--service", choices=SERVERS, action="append", help="only this service")
    parser.add_argument("--server", action="append", help="only this server, for example 'scripted'")
    parser.add_argument("--folder", type=Path, help="recordings of `certify --record`; needs --service")
    parser.add_argument("--renew", action="store_true", help="make the recordings of the repository anew")
    chosen = parser.parse_args(arguments)
    if chosen.folder is not None and (chosen.service is None or not list(chosen.folder.glob("*.yaml"))):
        parser.error("--folder needs --service, and has to hold recordings")
    os.environ.update({name: os.environ.get(name, value) for name, value in _CREDENTIALS.items()})
    bad = 0
    for service in chosen.service or SERVERS:
        folder = chosen.folder or RECORDINGS / service
        if chosen.renew and service in CHOSEN:
            shutil.rmtree(folder, ignore_errors=True)
            _record(service, folder, CHOSEN[service])
        if not list(folder.glob("*.yaml")):
            continue
        for server, start in SERVERS[service].items():
            if is_missing(server):
                _say(f"{service}, {server}: left out, because it is not installed here")
            elif chosen.server is None or server in chosen.server:
                with start() as url:
                    found, unknown, _ = differences(service, server, url, folder)
                for each in found:
                    _say(f"{'unknown' if each in unknown else 'known  '} {each}")
                _say(f"{service}, {server}: {len(found)} differences, {len(unknown)} of them unknown")
                bad += len(unknown)
    return int(bad > 0)
