"""Random lives on the embedded store, with a Delta table: what `verify` finds is what was planted."""

import random

import pytest

from multiclouddb_verify import DifferenceKind
from testing.seeds import in_soak, seeds

from .tables import Busy, Shop

LARGE = [pytest.param(200_000, seed, marks=pytest.mark.soak) for seed in in_soak(0, 2)]


class Killed(BaseException):
    """Raised to simulate the death of the process at this point."""


def verified(shop, dice, **settings):
    """Run `verify`, which dies up to twice at any moment, and goes on; return the report and the deaths."""
    most = deaths = dice.choice([0, 1, 2])

    def die(progress):
        nonlocal deaths
        if deaths and dice.random() < 0.2:
            deaths -= 1
            raise Killed

    while True:
        try:
            return shop.verify(on_progress=die, patience_seconds=300.0, **settings), most - deaths
        except Killed:
            settings["resume"] = dice.random() < 0.7


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("count", "seed"), seeds(1, 80, 60) + LARGE)
def test_found_is_what_was_planted_beside_a_writer_and_the_sink(count, seed, tmp_path):
    dice = random.Random(f"{count} {seed}")
    with Shop(tmp_path, count) as shop:
        quiet = dice.sample(shop.names, 14)
        faults = shop.plant(*quiet, kinds=dice.choices(list(DifferenceKind), k=14))
        lively = [name for name in shop.names if name not in quiet]
        with Busy(shop, dice.sample(lively, len(lively)), size=5000, dice=dice):
            report, _ = verified(shop, random.Random(f"kills {seed}"))
            assert {each.key: each.kind for each in report.differences} == faults
            assert report.counts.unsettled == 0
            if seed % 2:
                report, deaths = verified(shop, random.Random(f"kills {seed}"), repair=True)
                repaired = {each.key for each in report.repaired}
                assert report.equal
                # What a killed run has repaired, the next one finds equal.
                assert repaired <= set(faults) if deaths else repaired == set(faults)
        shop.follow()
        if seed % 2:
            shop.check_equal()
