"""Tests that providers are found by entry point.

The error tells a provider that is not installed from a provider that does not exist.
"""

import sys
from importlib.metadata import EntryPoint

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, installed_providers, registry


@pytest.fixture
def offer(monkeypatch):
    """Make these `name = module:object` entry points the only installed ones."""

    def install(*points):
        def found(*, group):
            assert group == "multiclouddb.providers"
            return points

        monkeypatch.setattr(registry, "entry_points", found)

    return install


def point(name, value="sys:path", owner=None):
    made = EntryPoint(name, value, "multiclouddb.providers")
    return made._for(type("Distribution", (), {"name": owner})()) if owner else made


def refused(provider_id):
    with pytest.raises(MulticloudDbError) as caught:
        registry.load_plugin(provider_id)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert caught.value.message.startswith("provider: ")
    return caught.value


def test_installed_providers_are_listed_once_and_sorted_without_loading_any(offer):
    offer(point("mongo", "no.such.module:X"), point("embedded"), point("embedded"))
    assert installed_providers() == ("embedded", "mongo")


@pytest.mark.parametrize(
    ("installed", "asked", "message"),
    [
        ("embedded", "embeded", "'embeded' is not known; did you mean 'embedded'?"),
        ("cassandra", "casandra", "did you mean 'cassandra'?"),
        ("cassandra", "xyz", "known are: cassandra, cosmos, dynamo, embedded, mongo, spanner"),
    ],
)
def test_an_unknown_provider_is_met_with_a_suggestion(offer, installed, asked, message):
    offer(point(installed))
    assert message in refused(asked).message


@pytest.mark.parametrize("provider_id", ["embedded", "dynamo", "spanner", "mongo", "cosmos"])
def test_a_missing_extra_is_met_with_the_command_that_installs_it(offer, provider_id):
    offer()
    error = refused(provider_id)
    assert f"{provider_id!r} is not installed" in error.message
    assert f'run: pip install "multiclouddb[{provider_id}]"' in error.message
    assert error.detail.provider == provider_id


def test_a_provider_offered_twice_names_both_owners(offer):
    offer(point("embedded", "sys:path", "multiclouddb-embedded"), point("embedded", "os:path", "imitation"))
    message = refused("embedded").message
    assert "is offered by imitation, multiclouddb-embedded" in message
    assert "uninstall all but one" in message


def test_the_same_entry_point_found_twice_is_one(offer):
    """A source tree and its editable install both contain the entry point."""
    offer(point("embedded", "sys:path"), point("embedded", "sys:path"))
    assert registry.load_plugin("embedded") is sys.path


def test_an_sdk_that_does_not_import_is_met_with_the_command_and_the_cause(offer):
    offer(point("dynamo", "no_such_sdk:PROVIDER"))
    error = refused("dynamo")
    assert "No module named 'no_such_sdk'" in error.message
    assert 'run: pip install "multiclouddb[dynamo]"' in error.message
    assert isinstance(error.__cause__, ImportError)
