"""Runs the tests of the conformance suite that retire a partition over TLS."""

import pytest

from multiclouddb_conformance.us8 import TestPropagation  # noqa: F401

from .harness import CosmosHarness

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
