"""Tests `multiclouddb columns`."""

import json
import tomllib

import pytest

from multiclouddb_cli import exits
from multiclouddb_spi.faults import key_digest


@pytest.fixture
def filled(store):
    for number in range(60):
        store.put("orders", f"n-{number:02}", {"n": number * 10, "v": 1 if number % 2 else "text"})


def test_proposal_is_a_file_that_fits(run, url, filled, tmp_path):
    ran = run("columns", url, "main/orders")
    assert ran.exit_code == 0, ran.output
    columns = tomllib.loads(ran.stdout)["columns"]
    assert (columns["n"], columns["v"]) == ("int64", "string")
    (tmp_path / "columns.toml").write_text(ran.stdout)
    ran = run("columns", url, "main/orders", "--check", tmp_path / "columns.toml")
    assert ran.exit_code == 0, ran.output
    assert "which are all of them: all values fit" in ran.stdout


def test_what_does_not_fit_ends_with_17_and_three_keys(run, url, filled, tmp_path):
    (tmp_path / "columns.toml").write_text('[columns]\nn = "int8"\nv = "int64"')
    ran = run("columns", url, "main/orders", "--check", tmp_path / "columns.toml")
    assert ran.exit_code == exits.UNFIT == 17
    assert key_digest('{"id":"n-13"}') in ran.stdout
    assert "n-13" not in ran.stdout
    told = json.loads(
        run(
            "columns", url, "main/orders", "--check", tmp_path / "columns.toml", "--json", "--show-values"
        ).stdout
    )
    assert [(each["column"], each["documents"], len(each["keys"])) for each in told["unfit"]] == [
        ("v", 30, 3),
        ("n", 47, 3),
    ]
    assert told["unfit"][1]["keys"] == [f'{{"id":"n-{number}"}}' for number in (13, 14, 15)]


def test_few_documents_are_read_if_wanted_and_that_is_told(run, url, filled):
    ran = run("columns", url, "main/orders", "--documents", "30", "--json")
    told = json.loads(ran.stdout)
    assert (told["documents"], told["whole"], told["unlisted"]) == (30, False, 0)
    assert "the first ones" in run("columns", url, "main/orders", "--documents", "30").stdout


def test_a_file_that_is_no_declaration_ends_with_3(run, url, store, tmp_path):
    (tmp_path / "columns.toml").write_text('[columns]\nkey = "string"')
    ran = run("columns", url, "main/orders", "--check", tmp_path / "columns.toml")
    assert ran.exit_code == 3
    assert 'path = ["key"]' in ran.output


def test_a_declaration_that_rescues_ends_with_0_and_values_are_shown_if_wanted(run, url, filled, tmp_path):
    (tmp_path / "columns.toml").write_text('misfits = "rescue"\n[columns]\nv = "int64"')
    ran = run("columns", url, "main/orders", "--check", tmp_path / "columns.toml")
    assert ran.exit_code == 0, ran.output
    assert "_rescued gets the others" in ran.stdout
    assert '"text"' not in ran.stdout
    ran = run("columns", url, "main/orders", "--check", tmp_path / "columns.toml", "--show-values")
    assert ': "text"' in ran.stdout
