"""Runs the tests of the conformance suite that follow splits over TLS."""

import pytest

from .harness import CosmosHarness
from .suite import TestSplit  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures("hasty"),
    # For localhost, azure-cosmos does not verify a certificate, and urllib3 warns about this for each
    # request.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]


class HttpsHarness(CosmosHarness):
    """A harness whose server has its own certificate, which azure-cosmos accepts on this machine."""

    https = True


HARNESS = HttpsHarness
