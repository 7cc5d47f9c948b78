import pytest

from .tables import quick


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(*quick())
