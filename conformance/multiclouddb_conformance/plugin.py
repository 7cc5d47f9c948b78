"""The pytest plugin of the kit: markers, fixtures, and the selection of the tests that apply to a harness.

A test module names its harness in `HARNESS`. If a module names several harnesses in `HARNESSES`,
every test runs once for each harness. Tests that do not apply are deselected at collection, never
skipped. The terminal summary shows the number of deselected tests and the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from multiclouddb_spi.fetching.consumers import Consumers

if TYPE_CHECKING:
    from multiclouddb_api import Capability, MulticloudDbClient
    from multiclouddb_conformance.collection import Collection
    from multiclouddb_conformance.harness import Harness

__all__ = ["LACKING", "client", "collection", "harness", "harness_class", "make_collection"]

pytest.register_assert_rewrite(
    "multiclouddb_conformance.checkpoint_stores",
    "multiclouddb_conformance.collection",
    "multiclouddb_conformance.targets",
    "multiclouddb_conformance.us8",
)

LACKING: Final = pytest.StashKey[Counter[str]]()
_WORKER_KEY: Final = "multiclouddb_us8"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the kit."""
    parser.addoption(
        "--through-asyncio",
        action="store_true",
        help="us8: make every call through the client of asyncio",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    Consumers.checks = True  # checks that each token still contains the whole state
    config.stash[LACKING] = Counter()
    for line in (
        "slow: takes ten seconds or more, or waits",
        "requires(capability): us8: runs if the provider has the capability, native or emulated",
        "refuses(capability): us8: tests the refusal of a capability that is missing or only emulated",
        "shows(*ids): the promises of docs/us8.toml that the test shows",
        "needs(*abilities): us8: runs if the harness has these abilities, see Harness.can_…",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test once for each harness."""
    harnesses = getattr(metafunc.module, "HARNESSES", None)
    if harnesses is not None and "harness_class" in metafunc.fixturenames:
        names = [each.__name__ for each in harnesses]
        metafunc.parametrize("harness_class", harnesses, indirect=True, ids=names)


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between the searches for more children of an ended partition."""
    monkeypatch.setattr("multiclouddb_spi.continuation.follow._pause_after", lambda looks: 0.0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that do not apply."""
    kept: list[pytest.Item] = []
    gone: list[pytest.Item] = []
    for item in items:
        if not isinstance(item, pytest.Function) or "harness_class" not in item.fixturenames:
            kept.append(item)
            continue
        chosen = _harness_of(item)
        through_asyncio = chosen.through_asyncio or config.getoption("through_asyncio")
        reason = "no fork" if through_asyncio and "fork" in _needs(item) else _reason_against(item, chosen)
        if reason is None:
            kept.append(item)
            continue
        gone.append(item)
        if reason:
            config.stash[LACKING][f"{chosen.__name__}: {reason}"] += 1
    if gone:
        items[:] = kept
        config.hook.pytest_deselected(items=gone)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of a pytest-xdist worker to the main process."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        lacking = session.config.stash[LACKING]
        output[_WORKER_KEY] = dict(lacking)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Use the counts of only one worker, because all workers collect the same tests."""
    del error
    counts = getattr(node, "workeroutput", {}).get(_WORKER_KEY)
    if counts:
        node.config.stash[LACKING].clear()
        node.config.stash[LACKING].update(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report which abilities the harnesses lack."""
    lacking = config.stash[LACKING]
    if lacking:
        terminalreporter.section("us8: deselected, because the harness lacks what they need")
        for text, count in sorted(lacking.items()):
            terminalreporter.write_line(f"{text}: {count} test{'s' if count > 1 else ''}")


def _harness_of(item: pytest.Function) -> type[Harness]:
    spec = getattr(item, "callspec", None)
    chosen = spec.params.get("harness_class") if spec is not None else None
    chosen = chosen or getattr(item.module, "HARNESS", None)
    if chosen is None:
        raise pytest.UsageError(f"{item.path}: set HARNESS to the harness class, like HARNESS = MyHarness")
    found: type[Harness] = chosen
    return found


def _reason_against(item: pytest.Item, chosen: type[Harness]) -> str | None:
    """Return the reason why a test does not apply, or None if the test applies."""
    from multiclouddb_api import Capability, Support

    required = [Capability.CHANGE_FEED, *_marked(item, "requires")]
    refused = _marked(item, "refuses")
    support = {each: chosen.capabilities[each].support for each in (*required, *refused)}
    support |= dict.fromkeys(chosen.lacks & support.keys(), Support.UNSUPPORTED)
    if any(support[each] is Support.NATIVE for each in refused):
        return ""
    for each in required:
        if support[each] is Support.UNSUPPORTED and Capability.CHANGE_FEED not in refused:
            return f"no {each.value}"
    for need in _needs(item):
        reason = _lack(need, chosen)
        if reason is not None:
            return reason
    return None


def _needs(item: pytest.Item) -> list[str]:
    return [need for mark in item.iter_markers("needs") for need in mark.args]


def _marked(item: pytest.Item, name: str) -> list[Capability]:
    return [each for mark in item.iter_markers(name) for each in mark.args]


def _lack(need: str, chosen: type[Harness]) -> str | None:
    from multiclouddb_conformance.harness import ABILITIES

    kind, _, value = need.partition(":")
    if kind == "value":
        return None if value in chosen.value_types else f"no {value} in documents"
    if kind == "key":
        return None if value in chosen.key_types else f"no {value} as key"
    return None if getattr(chosen, f"can_{need}") else ABILITIES[need]


@pytest.fixture
def harness_class(request: pytest.FixtureRequest) -> type[Harness]:
    """Return the harness class that the module names."""
    chosen: type[Harness] = getattr(request, "param", None) or request.module.HARNESS
    return chosen


@pytest.fixture
def harness(harness_class: type[Harness], tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Harness]:
    """An open harness."""
    made = harness_class(tmp_path)
    made.through_asyncio = made.through_asyncio or pytestconfig.getoption("through_asyncio")
    made.open()
    yield made
    made.close()


@pytest.fixture
def client(harness: Harness) -> Iterator[MulticloudDbClient]:
    """A client."""
    with harness.connect() as made:
        yield made


@pytest.fixture
def make_collection(harness: Harness) -> Iterator[Callable[..., Collection]]:
    """Return a function that makes a collection, as in `make_collection("n", CollectionKind.PLAIN, 2)`."""
    from multiclouddb_conformance.collection import Collection
    from multiclouddb_conformance.harness import CollectionKind

    made: list[Collection] = []

    def make(
        name: str = "items", kind: CollectionKind = CollectionKind.PLAIN, partitions: int | None = None
    ) -> Collection:
        address = harness.create(name, kind, partitions or harness.partitions)
        made.append(Collection(harness, address, harness.connect()))
        return made[-1]

    yield make
    for each in made:
        each.client.close()


@pytest.fixture
def collection(make_collection: Callable[..., Collection]) -> Collection:
    """Provide an empty collection with its own client."""
    return make_collection()
