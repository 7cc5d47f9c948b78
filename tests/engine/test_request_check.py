"""Tests requests that are refused without a call to the service, and tokens and ids that do not belong."""

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import (
    ALL_CAPABILITIES,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationOptions,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_spi import SupportsCommands, encode_partition_id

INVALID, UNSUPPORTED = api.ErrorCategory.INVALID_REQUEST, api.ErrorCategory.UNSUPPORTED_CAPABILITY
HERE, DATABASE = api.ResourceAddress("sim", "items"), api.ResourceAddress(database="sim")
MOMENT = api.AtTime(Simulation().now)
KEY = api.LogicalPartition(api.MulticloudDbKey({"id": "k1"}))
NEEDS = {
    api.Capability.CHANGE_FEED: {},
    api.Capability.CHANGE_FEED_BEGINNING: {"start_position": api.Beginning()},
    api.Capability.CHANGE_FEED_POINT_IN_TIME: {"start_position": MOMENT},
    api.Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: {"scope": KEY},
    api.Capability.CHANGE_FEED_SNAPSHOT: {"start_position": api.Snapshot()},
    api.Capability.CHANGE_FEED_ROWS: {"start_position": api.Snapshot(changes=False)},
    api.Capability.CHANGE_FEED_OLD_ITEM_STATE: {
        "old_item_state_mode": api.OldItemStateMode.INCLUDE_IF_AVAILABLE
    },
    api.Capability.CHANGE_FEED_DATABASE_SCOPE: {"scope": api.EntireDatabase(), "address": DATABASE},
    api.Capability.CHANGE_FEED_CLUSTER_SCOPE: {
        "scope": api.EntireCluster(),
        "address": api.ResourceAddress(),
    },
}
# No request needs these; they say what a feed contains.
FACTS = {
    api.Capability.CHANGE_FEED_ALL_VERSIONS,
    api.Capability.CHANGE_FEED_DELETES,
    api.Capability.CHANGE_FEED_CHANGE_TYPES,
}


class Oldest(api.Beginning):
    pass


@attrs.frozen
class Asking(SimulationOptions):
    """Options that opt in to emulated capabilities."""

    emulate: frozenset[api.Capability] = frozenset()

    def opts_into(self, capability):
        return capability in self.emulate


class Narrowing(SimulationOptions):
    """Options with which a feed cannot begin at its oldest change."""

    def narrow(self, capabilities):
        return without(api.Capability.CHANGE_FEED_BEGINNING)


class AskingProvider(SimulationProvider):
    options_type = Asking


class Elsewhere(SimulationProvider):
    provider_id = "elsewhere"


@attrs.frozen
class ForeignOptions(api.ProviderOptions):
    """Options of another provider."""


class CommandingProvider(SimulationProvider):
    def run_command(self, database, command, options):
        return {"ok": database, **command, **options}

    def run_cursor_command(self, database, command, options):
        return iter([command])


def emulating(*capabilities):
    notes = {can: api.CapabilityNote(api.Support.EMULATED, "pass Asking(emulate=…)") for can in capabilities}
    return api.CapabilitySet({**ALL_CAPABILITIES.notes, **notes})


def without(capability):
    return capabilities_without(capability, note="do it another way")


def refused(bench, provider, match, **wanted):
    """Make a request that must be refused without a call to the service; return the error."""
    bench.connect(provider=provider)
    request = api.ChangeFeedRequest(**{"address": HERE, "start_position": api.Now(), **wanted})
    with pytest.raises(api.MulticloudDbError, match=match) as caught:
        bench.engine.read_changes(request, api.OperationOptions())
    calls = provider.calls
    assert (calls.feeds, calls.starts, calls.lists, calls.total_fetches) == (0, 0, 0, 0)
    return caught.value


class TestCapabilities:
    def test_every_capability_is_tested(self):
        assert set(NEEDS) | FACTS | {api.Capability.LOOKUP, api.Capability.RUN_COMMAND} == set(api.Capability)

    def test_options_narrow_what_is_supported(self, bench):
        wanted = {"start_position": api.Beginning(), "provider_options": Narrowing()}
        error = refused(bench, SimulationProvider(bench.sim), "do it another way", **wanted)
        assert error.category == UNSUPPORTED

    @pytest.mark.parametrize("capability", NEEDS, ids=lambda can: can.value)
    def test_one_that_is_missing_or_not_asked_for_is_refused(self, bench, capability):
        needs = NEEDS[capability]
        providers = {
            "do it another way": SimulationProvider(bench.sim, capabilities=without(capability)),
            "only emulated.*pass Asking": AskingProvider(bench.sim, capabilities=emulating(capability)),
        }
        for match, provider in providers.items():
            error = refused(bench, provider, match, **needs)
            found = (error.category, error.detail.provider, error.detail.operation, error.retryable)
            assert found == (UNSUPPORTED, "simulation", "read_changes", False)

    def test_a_subclass_of_a_start_needs_what_the_start_needs(self, bench):
        provider = SimulationProvider(bench.sim, capabilities=without(api.Capability.CHANGE_FEED_BEGINNING))
        assert refused(bench, provider, "another way", start_position=Oldest()).category == UNSUPPORTED

    @pytest.mark.parametrize(
        "capability", [can for can in NEEDS if can in ALL_CAPABILITIES.notes], ids=lambda can: can.value
    )
    def test_what_is_emulated_works_when_asked_for(self, bench, capability):
        bench.connect(provider=AskingProvider(bench.sim, capabilities=emulating(capability)))
        needs = {"start_position": api.Now(), **NEEDS[capability]}
        options = Asking(emulate=frozenset([capability]))
        assert bench.page(needs.pop("start_position"), provider_options=options, **needs).continuation_token

    def test_asking_for_one_does_not_ask_for_another(self, bench):
        both = (api.Capability.CHANGE_FEED_BEGINNING, api.Capability.CHANGE_FEED_OLD_ITEM_STATE)
        refused(
            bench,
            AskingProvider(bench.sim, capabilities=emulating(*both)),
            "old_item_state_mode",
            start_position=api.Beginning(),
            old_item_state_mode=api.OldItemStateMode.REQUIRE,
            provider_options=Asking(emulate=frozenset(both[:1])),
        )

    def test_a_token_needs_no_capability_of_the_start_that_it_came_from(self, bench):
        bench.fill(3)
        token = bench.page(size=1).continuation_token
        can = without(api.Capability.CHANGE_FEED_BEGINNING)
        bench.connect(provider=SimulationProvider(bench.sim, capabilities=can))
        assert len(bench.page(token).events) == 2

    @pytest.mark.parametrize("operation", ["list_physical_partitions", "plan_partitions"])
    def test_other_calls_need_a_change_feed_too(self, bench, operation):
        bench.connect(
            provider=SimulationProvider(bench.sim, capabilities=without(api.Capability.CHANGE_FEED))
        )
        with pytest.raises(api.MulticloudDbError) as caught:
            bench.partitions() if operation == "list_physical_partitions" else bench.plan()
        assert (caught.value.category, caught.value.detail.operation) == (UNSUPPORTED, operation)

    @pytest.mark.parametrize("support", [None, api.Support.EMULATED, api.Support.NATIVE])
    def test_commands_are_passed_through_only_where_they_are_native(self, bench, support):
        notes = (
            {} if support is None else {api.Capability.RUN_COMMAND: api.CapabilityNote(support, "not here")}
        )
        can = api.CapabilitySet({**ALL_CAPABILITIES.notes, **notes})
        provider = CommandingProvider(bench.sim, capabilities=can)
        assert isinstance(provider, SupportsCommands)
        engine = bench.connect(provider=provider)
        if support is api.Support.NATIVE:
            assert engine.run_command("db", {"ping": 1}, {"x": 2}) == {"ok": "db", "ping": 1, "x": 2}
            assert list(engine.run_cursor_command("db", {"find": 1}, {})) == [{"find": 1}]
            return
        for call in ("run_command", "run_cursor_command"):
            with pytest.raises(api.MulticloudDbError) as caught:
                getattr(engine, call)("db", {"ping": 1}, {})
            assert (caught.value.category, caught.value.detail.operation) == (UNSUPPORTED, call)


class TestFields:
    @pytest.mark.parametrize(
        ("scope", "address"),
        [
            (api.EntireCollection(), DATABASE),
            (api.EntireCollection(), api.ResourceAddress()),
            (KEY, DATABASE),
            (api.PhysicalPartition("simulation:a.b:p0"), DATABASE),
            (api.EntireDatabase(), HERE),
            (api.EntireDatabase(), api.ResourceAddress()),
            (api.EntireCluster(), DATABASE),
            (api.EntireCluster(), HERE),
        ],
        ids=str,
    )
    def test_an_address_that_does_not_fit_the_scope_is_refused(self, bench, scope, address):
        error = refused(
            bench, SimulationProvider(bench.sim), type(scope).__name__, scope=scope, address=address
        )
        assert error.category == INVALID
        assert error.message.startswith("ChangeFeedRequest.address: ")

    def test_a_listing_needs_a_collection(self, bench):
        with pytest.raises(api.MulticloudDbError, match=r"ChangeFeedRequest\.address") as caught:
            bench.engine.list_physical_partitions(DATABASE, api.OperationOptions())
        assert (caught.value.category, bench.calls.feeds) == (INVALID, 0)

    @pytest.mark.parametrize(("takes", "way_out"), [(SimulationOptions, "SimulationOptions"), (None, "None")])
    def test_options_of_another_provider_are_refused(self, bench, takes, way_out):
        provider = SimulationProvider(bench.sim)
        provider.options_type = takes
        match = rf"ChangeFeedRequest\.provider_options.*ForeignOptions.*pass {way_out}"
        assert refused(bench, provider, match, provider_options=ForeignOptions()).category == INVALID


@pytest.fixture
def token(bench):
    bench.fill(5)
    return bench.page(size=1).continuation_token


class TestTokens:
    @pytest.mark.parametrize(
        ("match", "other"),
        [
            ("provider 'simulation', not to 'elsewhere'", {"provider": Elsewhere}),
            ("to sim/items, not to sim/others", {"address": api.ResourceAddress("sim", "others")}),
            ("to sim/items, not to mis/items", {"address": api.ResourceAddress("mis", "items")}),
            ("scope 'collection'", {"scope": KEY}),
            (
                "scope 'collection'",
                {"scope": api.PhysicalPartition(encode_partition_id("simulation", HERE, "i1", "p0"))},
            ),
            ("options", {"provider_options": SimulationOptions(view="other")}),
        ],
        ids=str,
    )
    def test_one_of_another_feed_is_refused(self, bench, token, match, other):
        provider = {**other}.pop("provider", SimulationProvider)(bench.sim)
        wanted = {name: value for name, value in other.items() if name != "provider"}
        error = refused(bench, provider, match, start_position=api.FromContinuationToken(token), **wanted)
        assert error.category == INVALID
        assert error.message.startswith("continuation_token: ")
        assert "start again" in error.message

    @pytest.mark.parametrize(
        "settings",
        [
            {"provider_options": SimulationOptions(hint="faster")},
            {"new_item_state_mode": api.NewItemStateMode.OMIT},
            {"old_item_state_mode": api.OldItemStateMode.REQUIRE},
            {"include_native": True},
        ],
        ids=str,
    )
    def test_what_changes_no_positions_may_change(self, bench, token, settings):
        assert len(bench.page(token, **settings).events) == 4


class TestRecreated:
    """A collection is dropped, and created again under its name."""

    @pytest.mark.parametrize("drop_notice", [False, True])
    def test_events_in_hand_come_before_the_token_is_refused(self, bench, ids, drop_notice):
        bench.fill(30)
        bench.sim.behaviour = ServiceBehaviour(drop_notice=drop_notice)
        written, token = bench.written(), bench.page(size=3).continuation_token
        token = bench.page(token, 3).continuation_token  # the service has sent twice as many
        bench.sim.recreate()
        page = bench.page(token, 50)
        assert ids(page) == written[6:9]
        assert not page.idle
        assert not any(isinstance(each, api.Dropped | api.FeedEnded) for each in page.notices)
        bench.refused(INVALID, page.continuation_token, match="recreated under the same name")

    def test_a_later_token_or_id_is_read_by_a_client_that_has_the_earlier_one_open(self, bench, token, ids):
        old = bench.engine
        bench.sim.recreate()
        bench.fill(4)
        bench.connect()
        fresh = bench.page(size=1).continuation_token
        assert ids(bench.page(fresh, engine=old)) == bench.written()[1:]
        bench.sim.recreate()
        bench.fill(4)
        scope = api.PhysicalPartition(bench.partitions()[0])
        assert ids(bench.page(scope=scope, engine=old)) == bench.written()

    def test_a_collection_that_is_made_after_it_was_missed_is_found(self, bench):
        bench.sim.drop()
        bench.refused(api.ErrorCategory.NOT_FOUND)
        bench.sim.recreate()
        assert bench.page().idle

    def test_feeds_of_earlier_incarnations_do_not_pile_up(self, bench):
        for _ in range(5):
            bench.fill(2)
            bench.drain()
            bench.sim.recreate()
        assert bench.calls.feeds > 4
        assert len(bench.engine._calls.kept.feeds._open) == 1

    def test_the_feed_decides_what_resumes(self, bench, token, monkeypatch):
        asked, answer = [], [True]

        def resumes(feed, incarnation):
            asked.append((incarnation, feed.identity.incarnation))
            return answer[0]

        bench.sim.recreate()
        bench.connect()
        monkeypatch.setattr(SimulationFeed, "resumes", resumes)
        bench.refused(api.ErrorCategory.NOT_FOUND, token)  # the service's answer decides, not the token
        assert asked[0] == ("i1", "i2")
        answer[0] = False
        bench.refused(INVALID, bench.page().continuation_token, match="recreated")


class TestPartitionIds:
    @pytest.mark.parametrize(
        ("partition_id", "match"),
        [
            (encode_partition_id("dynamo", HERE, "i1", "p0"), "provider 'dynamo'"),
            (
                encode_partition_id("simulation", api.ResourceAddress("sim", "x"), "i1", "p0"),
                "another resource",
            ),
            *[
                (text, "not a partition id")
                for text in ("p0", "simulation:p0", "simulation:a.b:", "simulation:.b:p0", ":::", "\ud800\0")
            ],
            ("simulation:" + "9" * 100_000, "not a partition id"),
        ],
        ids=["provider", "resource", "bare", "short", "empty", "no address", "colons", "no text", "long"],
    )
    def test_one_of_elsewhere_is_refused_untouched(self, bench, partition_id, match):
        error = bench.refused(INVALID, api.Now(), scope=api.PhysicalPartition(partition_id), match=match)
        assert error.message.startswith("PhysicalPartition.partition_id: ")
        assert "list_physical_partitions" in error.message
        assert bench.calls.feeds == 0

    @pytest.mark.parametrize("name", ["p99", "\ud800", "p0:more", " "])
    def test_an_unknown_one_of_this_resource_is_refused(self, bench, name):
        scope = api.PhysicalPartition(bench.sim.public_id(name))
        bench.refused(INVALID, scope=scope, match=r"PhysicalPartition\.partition_id")
