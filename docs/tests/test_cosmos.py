"""Checks the page about Cosmos DB on the project's emulator: its program and the program's output."""

import json
import threading

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_conformance.command_options import command
from multiclouddb_cosmos_emulator import CosmosEmulator

from .page import Page

PAGE = Page("cosmos.md")


@pytest.fixture
def account(tmp_path, monkeypatch):
    """Provide an account with the container of the page."""
    monkeypatch.chdir(tmp_path)
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        with CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False) as native:
            native.create_database("shop").create_container("orders", PartitionKey("/customer"))
            settle()
        yield server
        settle()


def settle():
    """Close the client only after its first request for the account has ended."""
    for thread in threading.enumerate():
        if thread.name == "cosmos-endpoint-refresh":
            thread.join(5)


def test_from_an_account_to_the_first_event(account):
    page = Page("cosmos.md")
    host = account.endpoint.split("/")[2]
    page.programs["first.py"] = (
        page.programs["first.py"]
        .replace("https://my-account.documents.azure.com", account.endpoint)
        .replace("cosmos://my-account.documents.azure.com", f"cosmos://{host}?tls=false")
    )
    assert page.run("first.py") == page.said_behind("first.py")


@pytest.mark.xdist_group("jvm")
def test_the_latest_versions(account, spark):
    """Every block of the page runs, on an account without continuous backup."""
    page, theirs = Page("cosmos-latest.md"), "cosmos://my-account.documents.azure.com"
    account.all_versions(False)
    ours = f"cosmos://{account.endpoint.split('/')[2]}?tls=false"

    def local(text):
        text = text.replace("https://my-account.documents.azure.com", account.endpoint)
        return text.replace(f"{theirs}?", f"{ours}&").replace(theirs, ours)

    page.programs = {name: local(code) for name, code in page.programs.items()}
    assert page.run("missing.py") == page.said_behind("missing.py")
    assert page.run("latest.py") == page.said_behind("latest.py")
    assert page.run("copy.py") == page.said_behind("copy.py")
    (words,) = page.commands("multiclouddb tail")
    ran = command(*map(local, words[1:]), "--until-idle", "--json")
    assert ran.exit_code == 0, ran.stderr
    assert [json.loads(line)["type"] for line in ran.stdout.splitlines()] == ["UPDATE", "DELETE"]
    (code,) = page.blocks("py")
    found = {"spark": spark}
    exec(local(code), found)
    assert "old_item_state" in found["baskets"].columns


def test_the_page_runs_every_program_that_it_has():
    assert set(PAGE.programs) == {"first.py"}
    assert set(Page("cosmos-latest.md").programs) | {"first.py"} == PAGE.programs_run_in(__file__)
