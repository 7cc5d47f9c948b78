"""Runs the explorer as `python -m multiclouddb_conformance.explore`."""

from __future__ import annotations

import logging
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, product
from typing import Final

from multiclouddb_conformance.explore.levels import LEVEL_GROUPS, READERS, Level, can_explore
from multiclouddb_conformance.explore.search import (
    GROUPS,
    Result,
    bounds_of,
    chosen,
    default_depth,
    explore,
    random_bounds,
    said,
    shortened,
    test_of,
    wander,
)
from multiclouddb_conformance.explore.service import Service
from multiclouddb_conformance.explore.simulated import SIMULATED
from multiclouddb_conformance.explore.world import ListingKind

__all__ = ["main"]

_LEVEL_SECONDS: Final = 120.0
_LONG_SECONDS: Final = 10.0
_MOST_DEPTH: Final = 99


def main(
    arguments: Sequence[str] | None = None, services: Mapping[str, Callable[[], Service]] = SIMULATED
) -> int:
    """Explore what the arguments say; return 1 if a promise is broken."""
    parser = ArgumentParser("explore", description="Explores every small history of a partitioned feed.")
    parser.add_argument(
        "--depth",
        type=int,
        metavar="N",
        help="all histories of at most N steps; by default 7 for base, 9 for reduced, 5 for the others",
    )
    parser.add_argument(
        "--kind",
        action="append",
        default=[],
        choices=[kind.value for kind in ListingKind],
        help="only this kind of service; may be repeated",
    )
    parser.add_argument(
        "--group", action="append", default=[], choices=list(GROUPS), help="only this group; may be repeated"
    )
    parser.add_argument("--seconds", type=float, help="CPU seconds for each kind and group at most")
    parser.add_argument(
        "--random",
        nargs=2,
        type=int,
        metavar=("STEPS", "SECONDS"),
        help="random histories of STEPS steps for SECONDS CPU seconds instead, one for each seed",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the first seed of random histories; the default is 0",
    )
    parser.add_argument(
        "--level",
        action="append",
        default=[],
        choices=[*services, "all"],
        help="this service behind the SPI instead, or all; without --depth two minutes for each reader and "
        "group",
    )
    parser.add_argument(
        "--reader", action="append", default=[], choices=list(READERS), help="only this reader of a level"
    )
    options = parser.parse_args(arguments)
    if options.level:
        if further := set(options.group) - set(LEVEL_GROUPS):
            parser.error(f"--level knows only the groups {', '.join(LEVEL_GROUPS)}, not {min(further)}")
        wanted = services if "all" in options.level else options.level
        return _explore_levels(
            {name: services[name] for name in wanted},
            options.reader or list(READERS),
            options.group or ["base", "descendants", "chained"],
            options.depth or _MOST_DEPTH,
            options.seconds or (None if options.depth else _LEVEL_SECONDS),
        )
    pairs = chosen(options.kind, options.group)
    if options.random:
        return _wander(pairs, options.random, options.seed)
    broken = states = transitions = 0
    for kind, group in pairs:
        bounds = bounds_of(kind, group)
        depth = default_depth(group) if options.depth is None else options.depth
        what = f"{kind.value} {group}"
        result = explore(bounds, depth, seconds=options.seconds, passed=partial(_show, what))
        states, transitions = states + result.states, transitions + result.transitions
        _print(said(what, result))
        for violation in result.violations:
            broken += 1
            _print("", test_of(bounds, violation, broken))
    _print(f"together: {states:,} states, {transitions:,} transitions, {broken} violations")
    return int(broken > 0)


def _explore_levels(
    services: Mapping[str, Callable[[], Service]],
    readers: Sequence[str],
    groups: Sequence[str],
    depth: int,
    seconds: float | None,
) -> int:
    broken = 0
    for name, (reader, group) in product(services, product(readers, groups)):
        service = services[name]()
        try:
            if not can_explore(service, reader, group):
                continue
            level = Level(service, READERS[reader](), bounds_of(service.kind, group))
            result = level.explore(depth, seconds=seconds)
        finally:
            service.close()
        _print(said(f"{name} {reader}" + f" {group}" * (group != "base"), result))
        for violation in result.violations:
            broken += 1
            _print(f"    {violation.problem}", "    " + " | ".join(violation.history))
    return int(broken > 0)


def _wander(pairs: list[tuple[ListingKind, str]], wanted: tuple[int, int], first: int) -> int:
    steps, seconds = wanted
    until = time.process_time() + seconds
    for seed in count(first):
        bounds = random_bounds(*pairs[seed % len(pairs)])
        violation = wander(bounds, steps, seed)
        if violation is not None:
            _print(f"seed {seed}:", "", test_of(bounds, shortened(bounds, violation), 1))
            return 1
        if time.process_time() > until:
            _print(f"{seed + 1 - first:,} random histories of {steps} steps from seed {first}: 0 violations")
            return 0
    raise AssertionError


def _show(what: str, result: Result) -> None:
    """Show how far a long exploration has come."""
    if result.seconds >= _LONG_SECONDS:
        sys.stderr.write(said(what, result) + "\n")


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # a lost position is a warning, and most histories lose one
    sys.exit(main())
