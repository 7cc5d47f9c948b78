"""Plants one defect at a time in what a client keeps of its consumers; the explorer has to find it.

Each history reads on with the client that made its pages, and with a new one after *new client*.
"""

import pytest

from multiclouddb_conformance.explore.levels import READERS, Level
from multiclouddb_conformance.explore.search import bounds_of
from multiclouddb_conformance.explore.simulated import SIMULATED
from multiclouddb_spi.fetching.consumers import Consumers
from tests.engine.planted import (
    adopted_wherever_it_stands,
    kept_after_an_interrupt,
    not_rewound,
    taken_for_another_request,
)

DEFECTS = [kept_after_an_interrupt, taken_for_another_request, not_rewound, adopted_wherever_it_stands]


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(monkeypatch, kind, plant):
    monkeypatch.setattr(Consumers, "checks", False)
    plant(monkeypatch)
    made = SIMULATED[kind]()
    assert Level(made, READERS["kept"](), bounds_of(made.kind, "base")).explore(2, most=1).violations
