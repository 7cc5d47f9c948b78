"""Tests that the declared capabilities of a provider are correct.

The error for a missing capability must say what to do instead.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import pytest

from multiclouddb_api import (
    Capability,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    Now,
    ResourceAddress,
    Support,
)
from multiclouddb_conformance.harness import Harness
from multiclouddb_conformance.refusals import check_refusal

__all__ = ["TestCapabilities", "TestNoFeed"]

_FEED = Capability.CHANGE_FEED
_COMMAND = Capability.RUN_COMMAND


@pytest.mark.shows("Plan 6")
class TestCapabilities:
    """Tests the capability set that a client reports."""

    def test_a_client_reports_what_the_harness_says(
        self, harness: Harness, client: MulticloudDbClient
    ) -> None:
        reported = client.capabilities()
        assert reported == harness.plugin.capabilities()
        assert {each: reported[each].support for each in Capability} == {
            each: harness.capabilities[each].support for each in Capability
        }

    @pytest.mark.shows("FR-070")
    def test_what_is_missing_or_emulated_has_a_note_to_act_on(self, client: MulticloudDbClient) -> None:
        reported = client.capabilities()
        bare = [
            each
            for each in Capability
            if reported[each].support is not Support.NATIVE and not reported[each].note
        ]
        assert bare == []

    def test_capabilities_and_their_notes_are_the_same_for_every_client(
        self, harness: Harness, client: MulticloudDbClient
    ) -> None:
        with harness.connect() as other:
            assert other.capabilities() == client.capabilities()

    @pytest.mark.shows("FR-070")
    @pytest.mark.refuses(_COMMAND)
    def test_a_refusal_names_the_provider_and_the_call(self, client: MulticloudDbClient) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            client.run_command("any", {"ping": 1})
        assert caught.value.detail.provider == client.config.provider
        assert caught.value.detail.operation == "run_command"

    @pytest.mark.shows("Further 5")
    @pytest.mark.requires(_COMMAND)
    def test_a_command_is_passed_through(self, harness: Harness, client: MulticloudDbClient) -> None:
        database, command = harness.command()
        assert client.run_command(database, command) is not None

    @pytest.mark.shows("Further 5")
    @pytest.mark.refuses(_COMMAND)
    def test_a_command_is_refused_with_the_way_out(self, client: MulticloudDbClient) -> None:
        for call in (client.run_command, client.run_cursor_command):
            with pytest.raises(MulticloudDbError) as caught:
                call("any", {"ping": 1})
            check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
            assert "; " in caught.value.message

    def test_a_collection_that_is_not_there_is_not_found(
        self, harness: Harness, client: MulticloudDbClient
    ) -> None:
        missing = harness.missing()
        with pytest.raises(MulticloudDbError) as caught:
            client.read_changes(ChangeFeedRequest(missing, Now()))
        check_refusal(caught.value, ErrorCategory.NOT_FOUND)
        with pytest.raises(MulticloudDbError) as caught:
            client.list_physical_partitions(missing)
        check_refusal(caught.value, ErrorCategory.NOT_FOUND)


@pytest.mark.shows("FR-070")
class TestNoFeed:
    """Tests a provider without a change feed."""

    @pytest.mark.refuses(_FEED)
    def test_every_read_is_refused_with_the_way_out(self, client: MulticloudDbClient) -> None:
        address = ResourceAddress("any", "any")
        request = ChangeFeedRequest(address, Now())
        for call in (
            lambda: client.read_changes(request),
            lambda: client.plan_partitions(request),
            lambda: client.list_physical_partitions(address),
        ):
            with pytest.raises(MulticloudDbError) as caught:
                call()
            check_refusal(caught.value, ErrorCategory.UNSUPPORTED_CAPABILITY)
            assert "; " in caught.value.message
