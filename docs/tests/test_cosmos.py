"""Checks the page about Cosmos DB on the project's emulator: its program and the program's output."""

import json
import threading

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_cosmos_emulator import CosmosEmulator
from testing.command_options import command

from .page import Page

PAGE = Page("databases/cosmos.md")
THEIRS = "cosmos://my-account.documents.azure.com"


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


def local(account, text):
    """Return a text of the page with the emulator's address."""
    ours = f"cosmos://{account.endpoint.split('/')[2]}?tls=false"
    text = text.replace("https://my-account.documents.azure.com", account.endpoint)
    return text.replace(f"{THEIRS}?", f"{ours}&").replace(THEIRS, ours)


def page_of(account):
    page = Page("databases/cosmos.md")
    page.programs = {name: local(account, code) for name, code in page.programs.items()}
    return page


def test_from_an_account_to_the_first_event(account):
    page = page_of(account)
    assert page.run("first.py") == page.said_behind("first.py")
    words = page.commands("multiclouddb tail")[0]
    assert command(*(local(account, word) for word in words[1:]), "--until-idle").exit_code == 0


def test_the_latest_versions(account):
    """The programs run on an account without continuous backup."""
    page = page_of(account)
    account.all_versions(False)
    assert page.run("latest.py") == page.said_behind("latest.py")
    words = page.commands("multiclouddb tail")[1]
    ran = command(*(local(account, word) for word in words[1:]), "--until-idle", "--json")
    assert ran.exit_code == 0, ran.stderr
    assert [json.loads(line)["type"] for line in ran.stdout.splitlines()] == ["UPDATE", "DELETE"]


def test_the_page_runs_every_program_that_it_has():
    assert set(PAGE.programs) == PAGE.programs_run_in(__file__)
