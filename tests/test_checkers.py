"""Tests what type checkers report to users of the API."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = textwrap.dedent(
    """
    from datetime import UTC, datetime

    from multiclouddb_api import AtTime, Beginning, ChangeFeedRequest, MulticloudDbKey
    from multiclouddb_api import ResourceAddress, connect

    address = ResourceAddress("main", "orders")
    reveal_type(AtTime(datetime.now(UTC)).utc)
    AtTime("yesterday")
    ChangeFeedRequest(address, Beginning)
    MulticloudDbKey("a")
    with connect("embedded:///data/store.db") as client:
        client.read_changes(address)
        changes = client.iterate_changes(ChangeFeedRequest(address, Beginning()), wait_seconds="5")
        for event in changes:
            reveal_type(event)
        client.capabilities().is_supported("run_command")
    """
)
EXPECTED = [
    'Revealed type is "datetime.datetime"',
    'Argument 1 to "AtTime" has incompatible type "str"; expected "datetime"',
    'Argument 2 to "ChangeFeedRequest" has incompatible type "type[Beginning]"',
    'Argument 1 to "MulticloudDbKey" has incompatible type "str"',
    'Argument 1 to "read_changes" of "MulticloudDbClient" has incompatible type "ResourceAddress"',
    'Argument "wait_seconds" to "iterate_changes" of "MulticloudDbClient" has incompatible type "str"',
    'Revealed type is "multiclouddb_api.event.ChangeEvent"',
    'Argument 1 to "is_supported" of "CapabilitySet" has incompatible type "str"',
]


def test_mistakes_are_found_before_the_program_runs(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = re.findall(r"^.*program\.py:\d+: \w+: (.*)$", ran.stdout, re.MULTILINE)
    assert len(told) == len(EXPECTED), ran.stdout + ran.stderr
    assert [want for want, got in zip(EXPECTED, told, strict=True) if want not in got] == []
