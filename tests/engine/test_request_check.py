"""Tests requests that are refused without a call to the service, and what the error says."""

from datetime import timedelta

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    CapabilityNote,
    CapabilitySet,
    ChangeFeedRequest,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OperationOptions,
    PhysicalPartition,
    ProviderOptions,
    ResourceAddress,
    Snapshot,
    Support,
)
from multiclouddb_conformance.simulation import (
    ALL_CAPABILITIES,
    Simulation,
    SimulationOptions,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_spi import SupportsCommands, encode_partition_id

BEGINNING = Beginning()
KEY = LogicalPartition(MulticloudDbKey({"id": "k1"}))
NEEDS = {
    Capability.CHANGE_FEED: {},
    Capability.CHANGE_FEED_BEGINNING: {"start_position": Beginning()},
    Capability.CHANGE_FEED_POINT_IN_TIME: {"start_position": "a moment"},
    Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: {"scope": KEY},
    Capability.CHANGE_FEED_SNAPSHOT: {"start_position": Snapshot()},
    Capability.CHANGE_FEED_OLD_ITEM_STATE: {"old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE},
    Capability.CHANGE_FEED_DATABASE_SCOPE: {
        "scope": EntireDatabase(),
        "address": ResourceAddress(database="sim"),
    },
    Capability.CHANGE_FEED_CLUSTER_SCOPE: {"scope": EntireCluster(), "address": ResourceAddress()},
}


@attrs.frozen
class Asking(SimulationOptions):
    """Options that opt in to emulated capabilities."""

    emulate: frozenset[Capability] = frozenset()

    def opts_into(self, capability):
        return capability in self.emulate


class AskingProvider(SimulationProvider):
    options_type = Asking


@attrs.frozen
class ForeignOptions(ProviderOptions):
    """Options of another provider."""


class CommandingProvider(SimulationProvider):
    def run_command(self, database, command, options):
        return {"ok": database, **command, **options}

    def run_cursor_command(self, database, command, options):
        return iter([command])


def emulating(*capabilities):
    notes = {can: CapabilityNote(Support.EMULATED, "pass Asking(emulate=…)") for can in capabilities}
    return CapabilitySet({**ALL_CAPABILITIES.notes, **notes})


@pytest.fixture
def refusing(make_bench):
    """Connect with some capabilities, and return the error of a request that must be refused."""
    bench = make_bench()

    def refuse(provider, needs, **options):
        bench.connect(provider=provider(bench.sim))
        wanted = dict(needs)
        if wanted.get("start_position") == "a moment":
            wanted["start_position"] = AtTime(bench.sim.now)
        request = ChangeFeedRequest(
            **{"address": bench.sim.address, "start_position": Now(), **wanted, **options}
        )
        with pytest.raises(MulticloudDbError) as caught:
            bench.engine.read_changes(request, OperationOptions())
        calls = bench.calls
        assert (calls.feeds, calls.starts, calls.lists, calls.total_fetches) == (0, 0, 0, 0)
        return caught.value

    refuse.bench = bench
    return refuse


class TestCapabilities:
    def test_every_capability_is_tested(self):
        assert set(NEEDS) | {Capability.RUN_COMMAND} == set(Capability)

    @pytest.mark.parametrize("capability", NEEDS, ids=lambda can: can.value)
    def test_what_is_unsupported_is_refused_with_the_way_out(self, refusing, capability):
        without = capabilities_without(capability, note="do it another way")
        error = refusing(lambda sim: SimulationProvider(sim, capabilities=without), NEEDS[capability])
        assert error.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert "do it another way" in error.message
        assert error.detail.provider == "simulation"
        assert error.detail.operation == "read_changes"
        assert not error.retryable

    def test_a_subclass_of_a_start_needs_what_the_start_needs(self, refusing):
        class Oldest(Beginning):
            pass

        without = capabilities_without(Capability.CHANGE_FEED_BEGINNING, note="do it another way")
        error = refusing(
            lambda sim: SimulationProvider(sim, capabilities=without), {"start_position": Oldest()}
        )
        assert error.category == ErrorCategory.UNSUPPORTED_CAPABILITY

    @pytest.mark.parametrize("capability", NEEDS, ids=lambda can: can.value)
    def test_what_is_emulated_is_refused_without_being_asked_for(self, refusing, capability):
        error = refusing(
            lambda sim: AskingProvider(sim, capabilities=emulating(capability)), NEEDS[capability]
        )
        assert error.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert "only emulated" in error.message
        assert "pass Asking" in error.message

    @pytest.mark.parametrize(
        "capability",
        [can for can in NEEDS if can in ALL_CAPABILITIES.notes],
        ids=lambda can: can.value,
    )
    def test_what_is_emulated_works_when_asked_for(self, make_bench, capability):
        bench = make_bench()
        bench.connect(provider=AskingProvider(bench.sim, capabilities=emulating(capability)))
        bench.fill(3)
        needs = dict(NEEDS[capability])
        place = needs.pop("start_position", Now())
        place = AtTime(bench.sim.now) if place == "a moment" else place
        options = Asking(emulate=frozenset([capability]))
        assert bench.page(place, provider_options=options, **needs).continuation_token

    def test_asking_for_one_does_not_ask_for_another(self, refusing):
        both = (Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_OLD_ITEM_STATE)
        error = refusing(
            lambda sim: AskingProvider(sim, capabilities=emulating(*both)),
            {"start_position": Beginning(), "old_item_state_mode": OldItemStateMode.REQUIRE},
            provider_options=Asking(emulate=frozenset(both[:1])),
        )
        assert "old_item_state_mode" in error.message

    def test_token_needs_no_capability_of_the_start_that_it_came_from(self, make_bench):
        bench = make_bench()
        bench.connect()
        bench.fill(3)
        token = bench.page(size=1).continuation_token
        bench.connect(
            provider=SimulationProvider(
                bench.sim, capabilities=capabilities_without(Capability.CHANGE_FEED_BEGINNING)
            )
        )
        assert len(bench.page(token).events) == 2

    @pytest.mark.parametrize("operation", ["list_physical_partitions", "plan_partitions"])
    def test_other_calls_need_a_change_feed_too(self, make_bench, operation):
        bench = make_bench()
        without = capabilities_without(Capability.CHANGE_FEED)
        bench.connect(provider=SimulationProvider(bench.sim, capabilities=without))
        call = bench.partitions if operation == "list_physical_partitions" else bench.plan
        with pytest.raises(MulticloudDbError) as caught:
            call()
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert caught.value.detail.operation == operation

    def test_a_missing_note_still_tells_where_to_look(self, refusing):
        error = refusing(
            lambda sim: SimulationProvider(sim, capabilities=CapabilitySet({})), {"start_position": Now()}
        )
        assert "capabilities()" in error.message


class TestCommands:
    @pytest.mark.parametrize("call", ["run_command", "run_cursor_command"])
    def test_refused_where_there_are_none(self, bench, call):
        with pytest.raises(MulticloudDbError, match="run_command is not supported") as caught:
            getattr(bench.engine, call)("db", {"ping": 1}, {})
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert caught.value.detail.operation == call

    def test_passed_through_where_there_are(self, make_bench):
        bench = make_bench()
        can = CapabilitySet(
            {**ALL_CAPABILITIES.notes, Capability.RUN_COMMAND: CapabilityNote(Support.NATIVE)}
        )
        provider = CommandingProvider(bench.sim, capabilities=can)
        assert isinstance(provider, SupportsCommands)
        bench.connect(provider=provider)
        assert bench.engine.run_command("db", {"ping": 1}, {"x": 2}) == {"ok": "db", "ping": 1, "x": 2}
        assert list(bench.engine.run_cursor_command("db", {"find": 1}, {})) == [{"find": 1}]


class TestAddress:
    @pytest.mark.parametrize(
        ("scope", "address"),
        [
            (EntireCollection(), ResourceAddress(database="sim")),
            (EntireCollection(), ResourceAddress()),
            (KEY, ResourceAddress(database="sim")),
            (PhysicalPartition("simulation:a.b:p0"), ResourceAddress(database="sim")),
            (EntireDatabase(), ResourceAddress("sim", "items")),
            (EntireDatabase(), ResourceAddress()),
            (EntireCluster(), ResourceAddress(database="sim")),
            (EntireCluster(), ResourceAddress("sim", "items")),
        ],
        ids=str,
    )
    def test_address_that_does_not_fit_the_scope_is_refused(self, refusing, scope, address):
        error = refusing(SimulationProvider, {"scope": scope, "address": address})
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert error.message.startswith("ChangeFeedRequest.address: ")
        assert type(scope).__name__ in error.message

    def test_listing_needs_a_collection(self, bench):
        with pytest.raises(MulticloudDbError, match=r"ChangeFeedRequest\.address") as caught:
            bench.engine.list_physical_partitions(ResourceAddress(database="sim"), OperationOptions())
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert bench.calls.feeds == 0

    def test_collection_that_does_not_exist_is_not_found(self, bench):
        request = ChangeFeedRequest(ResourceAddress("sim", "nothing"), Now())
        with pytest.raises(MulticloudDbError) as caught:
            bench.engine.read_changes(request, OperationOptions())
        assert caught.value.category == ErrorCategory.NOT_FOUND
        assert "sim/nothing" in caught.value.message


class TestOptions:
    def test_options_of_another_provider_are_refused(self, refusing):
        error = refusing(SimulationProvider, {"provider_options": ForeignOptions()})
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert "ChangeFeedRequest.provider_options" in error.message
        assert "ForeignOptions" in error.message
        assert "pass SimulationOptions" in error.message

    def test_provider_without_options_takes_none(self, refusing):
        class Plain(SimulationProvider):
            options_type = None

        error = refusing(Plain, {"provider_options": ForeignOptions()})
        assert "pass None" in error.message
        bench = refusing.bench
        bench.connect(provider=Plain(bench.sim))
        assert bench.page(Now()).idle

    def test_no_options_are_the_default_options(self, bench):
        bench.fill(3)
        token = bench.page(size=1).continuation_token
        assert len(bench.page(token, provider_options=SimulationOptions()).events) == 2
        assert bench.calls.feeds == 1


class TestForeignTokens:
    """A token of another feed or provider is refused without a call to the service."""

    @pytest.fixture
    def token(self, bench):
        bench.fill(5)
        return bench.page(size=1).continuation_token

    @pytest.fixture
    def refused(self, bench):
        def refuse(token, match, sim=None, provider=None, **request):
            sim = sim or bench.sim
            provider = provider or SimulationProvider(sim)
            bench.connect(provider=provider)
            request = {"address": sim.address, "start_position": FromContinuationToken(token), **request}
            with pytest.raises(MulticloudDbError, match=match) as caught:
                bench.engine.read_changes(ChangeFeedRequest(**request), OperationOptions())
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            assert caught.value.message.startswith("continuation_token: ")
            assert "start again" in caught.value.message
            return provider.calls

        return refuse

    def test_of_another_provider(self, refused, bench, token):
        class Elsewhere(SimulationProvider):
            provider_id = "elsewhere"

        calls = refused(token, "provider 'simulation', not to 'elsewhere'", provider=Elsewhere(bench.sim))
        assert calls.feeds == 0

    def test_of_another_resource(self, refused, token):
        other = Simulation(address=ResourceAddress("sim", "others"))
        assert refused(token, "to sim/items, not to sim/others", sim=other).feeds == 0

    def test_of_another_database(self, refused, token):
        other = Simulation(address=ResourceAddress("mis", "items"))
        assert refused(token, "to sim/items, not to mis/items", sim=other).feeds == 0

    @pytest.mark.parametrize(
        "scope", [KEY, PhysicalPartition(encode_partition_id("simulation", Simulation().address, "i1", "p0"))]
    )
    def test_of_another_scope(self, refused, token, scope):
        assert refused(token, "scope 'collection'", scope=scope).feeds == 0

    def test_of_options_that_mean_other_positions(self, refused, token):
        assert refused(token, "options", provider_options=SimulationOptions(view="other")).feeds == 0

    def test_options_that_change_no_positions_may_change(self, bench, token):
        assert len(bench.page(token, provider_options=SimulationOptions(hint="faster")).events) == 4

    def test_modes_may_change(self, bench, token):
        page = bench.page(
            token,
            new_item_state_mode=NewItemStateMode.OMIT,
            old_item_state_mode=OldItemStateMode.REQUIRE,
            include_native=True,
        )
        assert len(page.events) == 4

    def test_of_an_earlier_incarnation(self, refused, bench, token):
        bench.sim.recreate()
        calls = refused(token, "recreated under the same name")
        assert (calls.starts, calls.total_fetches) == (0, 0)

    def test_of_an_earlier_incarnation_to_a_client_that_is_still_connected(self, bench, token):
        bench.sim.recreate()
        errors = []
        for _ in range(2):
            with pytest.raises(MulticloudDbError) as caught:
                bench.page(token)
            errors.append(caught.value.category)
        assert errors[-1] == ErrorCategory.INVALID_REQUEST

    def test_of_a_later_incarnation_than_a_client_has_seen_is_read(self, bench, token, ids):
        """A client that was connected before the collection was recreated opens the new collection."""
        old = bench.engine
        bench.sim.recreate()
        bench.fill(4)
        bench.connect()
        fresh = bench.page(size=1).continuation_token
        assert ids(bench.page(fresh, engine=old)) == bench.written()[1:]


class TestRecreated:
    """Tests a client that stays open while its collection is dropped and created again."""

    def test_new_start_reads_the_new_collection(self, bench, ids):
        bench.fill(3)
        bench.drain()
        bench.sim.recreate()
        bench.fill(2)
        assert ids(bench.drain()[0]) == bench.written()

    def test_listing_and_planning_see_the_new_collection(self, bench):
        bench.partitions()
        bench.sim.recreate(3)
        assert len(bench.partitions()) == 3
        assert [name for name, _ in bench.plan()] == list(bench.partitions())

    def test_collection_that_is_made_after_it_was_missed_is_found(self, bench):
        bench.sim.drop()
        bench.refused(ErrorCategory.NOT_FOUND)
        bench.sim.recreate()
        assert bench.page().idle

    def test_feeds_of_earlier_incarnations_do_not_pile_up(self, bench):
        closed = []
        provider = bench.provider
        opened = provider.open_feed

        def open_feed(spec, deadline):
            feed = opened(spec, deadline)
            feed.close = lambda: closed.append(feed)
            return feed

        provider.open_feed = open_feed
        for _ in range(5):
            bench.fill(2)
            bench.drain()
            bench.sim.recreate()
        assert len(closed) == provider.calls.feeds - 1


class TestPartitionIds:
    @pytest.mark.parametrize(
        ("partition_id", "match"),
        [
            (encode_partition_id("dynamo", ResourceAddress("sim", "items"), "i1", "p0"), "provider 'dynamo'"),
            (encode_partition_id("simulation", ResourceAddress("sim", "x"), "i1", "p0"), "another resource"),
            ("p0", "not a partition id"),
            ("simulation:p0", "not a partition id"),
            ("simulation:a.b:", "not a partition id"),
            ("simulation:.b:p0", "not a partition id"),
            (":::", "not a partition id"),
            ("\ud800\0", "not a partition id"),
            ("simulation:" + "9" * 100_000, "not a partition id"),
        ],
        ids=["provider", "resource", "bare", "short", "empty", "no address", "colons", "no text", "long"],
    )
    def test_id_of_elsewhere_is_refused_untouched(self, bench, partition_id, match):
        error = bench.refused(
            ErrorCategory.INVALID_REQUEST, Now(), scope=PhysicalPartition(partition_id), match=match
        )
        assert error.message.startswith("PhysicalPartition.partition_id: ")
        assert "list_physical_partitions" in error.message
        assert bench.calls.feeds == 0

    def test_id_of_an_earlier_incarnation_is_refused(self, bench):
        (name,) = bench.partitions()
        bench.sim.recreate()
        for _ in range(2):
            bench.refused(
                ErrorCategory.INVALID_REQUEST, Now(), scope=PhysicalPartition(name), match="recreated"
            )

    def test_id_of_a_later_incarnation_than_a_client_has_seen_is_read(self, bench, ids):
        bench.page()
        old = bench.engine
        bench.sim.recreate()
        bench.fill(2)
        bench.connect()
        (name,) = bench.partitions()
        assert ids(bench.page(scope=PhysicalPartition(name), engine=old)) == bench.written()

    @pytest.mark.parametrize("name", ["p99", "\ud800", "p0:more", " "])
    def test_unknown_id_of_this_resource_is_refused(self, bench, name):
        scope = PhysicalPartition(bench.sim.public_id(name))
        error = bench.refused(ErrorCategory.INVALID_REQUEST, scope=scope)
        assert "PhysicalPartition.partition_id" in error.message

    def test_id_with_a_token_of_another_partition_is_refused(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        (_, token), (other, _) = bench.plan()
        bench.refused(ErrorCategory.INVALID_REQUEST, token, scope=PhysicalPartition(other), match="scope")


class TestTime:
    def test_moment_too_far_ahead_is_refused_by_seconds(self, bench):
        moment = AtTime(bench.sim.now + timedelta(seconds=61))
        error = bench.refused(ErrorCategory.INVALID_REQUEST, moment)
        assert "AtTime.utc" in error.message
        assert " s ahead of the service's clock" in error.message

    def test_it_is_the_clock_of_the_service_that_counts(self, make_bench):
        """In the simulation, the year is always 2026; the clock of the machine may show another year."""
        bench = make_bench(start=Simulation().now + timedelta(days=365 * 50))
        bench.connect()
        assert bench.page(AtTime(bench.sim.now)).idle
