"""Provides the credentials of the test servers, and hides those of the person who runs the tests."""

import pytest

from .servers import CREDENTIALS, service
from .stores import kind_of


@pytest.fixture(scope="module", autouse=True)
def _credentials(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        nowhere = tmp_path_factory.getbasetemp() / "no-such-file"
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, str(nowhere))
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def running(request, _credentials):
    """Start the service whose scheme the module names."""
    with service(request.module.SCHEME) as found:
        yield found


@pytest.fixture
def served(running, monkeypatch):
    """Return the running service, and set what its clients find in the environment."""
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def kind(served):
    return kind_of(served)
