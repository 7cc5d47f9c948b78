"""A micro-batch that is larger than what the driver can take: the stream does not stop for ever."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from .test_kill import Follower, marks, table_of

PROGRAM = Path(__file__).with_name("bounded.py")
KEYS = 6_000
RESULT_SIZE = "1m"


def fill(source):
    """About ten times what the sink collects at a time, in one micro-batch."""
    for number in range(KEYS):
        key, document = f"k{number}", {"n": number, "text": "x" * 800}
        source.store.put("orders", key, document)
        source.documents[key] = document
    for number in range(0, KEYS, 50):
        source.store.delete("orders", f"k{number}")
        del source.documents[f"k{number}"]


@pytest.mark.timeout(900)  # it starts Spark twice
def test_batch_of_ten_times_the_bound_survives_a_kill_between_two_commits(source, tmp_path):
    fill(source)
    follower = Follower(tmp_path, RESULT_SIZE, PROGRAM)
    follower.wait_for("../table/_delta_log/00000000000000000003.json")
    follower.kill()
    killed_at = DeltaTable(tmp_path / "table").version()
    assert marks(tmp_path, "offsets") - marks(tmp_path, "commits") == {1}
    assert DeltaTable(tmp_path / "table").transaction_version("bounded") is None

    Follower(tmp_path, RESULT_SIZE, PROGRAM).end(0)
    assert marks(tmp_path, "offsets") == marks(tmp_path, "commits")
    assert table_of(tmp_path) == source.documents
    table = DeltaTable(tmp_path / "table")
    assert table.transaction_version("bounded") == 1
    assert table.version() >= killed_at + 5
