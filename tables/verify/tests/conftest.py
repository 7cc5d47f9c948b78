import pytest

from multiclouddb_spi import open_feed
from multiclouddb_verify import source

from .tables import quick


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(*quick())
    # The simulation's clock moves only with its commits and pauses: it is asked each time, and it is exact.
    monkeypatch.setattr(open_feed, "_CLOCK_SECONDS", 0.0)
    monkeypatch.setattr(source, "_CLOCK_ERROR", 0.0)
    monkeypatch.setattr(source, "_POLL_SECONDS", 0.01)
