"""Runs all faults of a long run of mirrors in a few minutes."""

import json

import pytest

from soak.mirror import main


@pytest.mark.soak
def test_ten_tables_follow_their_collections_while_everything_fails_once(tmp_path):
    assert main([str(tmp_path), "--minutes", "2"]) == 0, (tmp_path / "verdict.json").read_text()
    assert json.loads((tmp_path / "verdict.json").read_text())["equal"]
