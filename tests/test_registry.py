"""Tests that providers are found by entry point.

The error tells a provider that is not installed from a provider that does not exist.
"""

import sys
import zipfile
from importlib import metadata

import pytest

import multiclouddb_api as api
from multiclouddb_api import entry_points as entry_points_module
from multiclouddb_api import installed_providers, registry
from multiclouddb_api.entry_points import EntryPoint, entry_points
from multiclouddb_certify.certification import load_certification
from multiclouddb_cli.main import Commands

from .refusals import refusal

GROUP = "multiclouddb.providers"


@pytest.fixture
def offer(monkeypatch):
    """Make these `name = module:object` entry points the only installed ones."""

    def install(*points):
        def found(*, group):
            assert group == GROUP
            return points

        monkeypatch.setattr(registry, "entry_points", found)

    return install


def point(name, value="sys:path", owner="-"):
    return EntryPoint(name, value, owner)


def refused(provider_id):
    error = refusal(registry.load_plugin, provider_id)
    assert error.message.startswith("provider: ")
    return error


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


@pytest.mark.parametrize("provider_id", ["dynamo", "spanner", "mongo", "cosmos"])
def test_a_missing_extra_is_met_with_the_command_that_installs_it(offer, provider_id):
    offer()
    error = refused(provider_id)
    assert f"{provider_id!r} is not installed" in error.message
    assert f'run: pip install "multiclouddb[{provider_id}]"' in error.message
    assert error.detail.provider == provider_id


def test_the_provider_that_is_always_there_can_be_missing_too(offer):
    offer()
    assert refused("embedded").message.endswith("'embedded' is not installed; run: pip install multiclouddb")


def test_a_provider_offered_twice_names_both_owners(offer):
    offer(point("embedded", "sys:path", "multiclouddb"), point("embedded", "os:path", "imitation"))
    message = refused("embedded").message
    assert "is offered by imitation, multiclouddb" in message
    assert "uninstall all but one" in message


@pytest.mark.parametrize(
    ("group", "call"),
    [
        ("multiclouddb.checkpoint_stores", lambda: api.open_checkpoint_store("s3://bucket/p")),
        ("multiclouddb.harnesses", lambda: load_certification("s3://bucket/p")),
        ("multiclouddb.commands", lambda: Commands(name="multiclouddb").get_command(None, "s3")),
    ],
)
def test_what_two_distributions_offer_is_given_to_neither(monkeypatch, group, call):
    """The one that is earlier on the path would get a URL or a command line that is not for it."""
    offers = [point("s3", "sys:path", "ours"), point("s3", "os:path", "imitation")]
    for module in (registry, entry_points_module):
        found = lambda **asked: offers if asked == {"group": group} else []  # noqa: E731
        monkeypatch.setattr(module, "entry_points", found)
    with pytest.raises(
        api.MulticloudDbError, match="'s3' is offered by imitation, ours; uninstall all but one"
    ):
        call()


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


def install(folder, name, version="1.0", text=f"[{GROUP}]\nother = sys:path\n", kind="dist-info"):
    info = folder / f"{name.replace('-', '_')}-{version}.{kind}"
    info.mkdir(parents=True)
    facts = "METADATA" if kind == "dist-info" else "PKG-INFO"
    (info / facts).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: text\n")
    (info / "entry_points.txt").write_text(text)


def from_the_standard_library(group=GROUP):
    found = metadata.entry_points(group=group)
    return sorted((each.name, each.value, each.dist.name, each.dist.version) for each in found)


def from_the_registry(group=GROUP):
    found = entry_points(group=group)
    return sorted((each.name, each.value, each.distribution, each.version) for each in found)


@pytest.fixture
def path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "no such folder"), *sys.path])
    return tmp_path / "first"


class TestTheFilesOfTheDistributions:
    """The registry reads them itself; it must find what `importlib.metadata` finds."""

    @pytest.mark.parametrize("group", [GROUP, "multiclouddb.checkpoint_stores", "pytest11"])
    def test_of_this_environment(self, group):
        assert from_the_registry(group) == from_the_standard_library(group)
        assert group == "pytest11" or from_the_registry(group)

    @pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
    def test_with_other_groups_comments_spaces_and_extras(self, path, kind):
        text = (
            "[console_scripts]\nother=a:b\n\n# a comment\n[ multiclouddb.providers ]\n"
            "# another = a:b\n  one  =  sys : path  \ntwo=os.path:join [extra]\nthree = os\n"
            "[multiclouddb.providers.more]\nno = a:b\n"
        )
        install(path, "some-distribution", text=text, kind=kind)
        found = [each for each in entry_points(group="multiclouddb.providers") if each.version == "1.0"]
        assert {each.name: each.value for each in found} == {
            "one": "sys:path", "two": "os.path:join", "three": "os"
        }  # fmt: skip
        assert {each.distribution for each in found} == {"some-distribution"}
        assert [each.load() for each in found] == [sys.path, __import__("os").path.join, __import__("os")]

    def test_of_one_distribution_that_is_found_twice_count_once(self, path, monkeypatch):
        install(path, "some-distribution", "2.0")
        install(path.parent / "second", "Some.Distribution", text=f"[{GROUP}]\nold = sys:path\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(path.parent / "second")])
        assert from_the_registry() == from_the_standard_library()
        assert "other" in installed_providers()
        assert "old" not in installed_providers()

    def test_of_two_distributions_with_one_provider_are_refused_with_both_names(self, path):
        install(path, "imitation", text="[multiclouddb.providers]\nembedded = os:path\n")
        assert "'embedded' is offered by imitation, multiclouddb;" in refused("embedded").message

    def test_installed_later_are_found(self, path):
        path.mkdir()
        assert "other" not in installed_providers()
        install(path, "some-distribution")
        assert "other" in installed_providers()

    def test_in_an_archive_are_found_too(self, path, monkeypatch, tmp_path):
        install(path, "some-distribution")
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for file in path.glob("*/*"):
                archive.write(file, file.relative_to(path))
        monkeypatch.setattr(sys, "path", [*sys.path[1:], str(tmp_path / "all.zip")])
        assert from_the_registry() == from_the_standard_library()
        assert "other" in installed_providers()
