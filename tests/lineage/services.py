"""The services that the explorer reads with `--level`, each made when it is asked for."""

from multiclouddb_conformance.explore.simulated import SIMULATED


def _embedded():
    from .service_embedded import EmbeddedService

    return EmbeddedService()


def _dynamo():
    from .service_dynamo import DynamoService

    return DynamoService()


def _cosmos():
    from .service_cosmos import CosmosService

    return CosmosService()


def _spanner():
    from .service_spanner import SpannerService

    return SpannerService()


SERVICES = {**SIMULATED, "embedded": _embedded, "cosmos": _cosmos, "dynamo": _dynamo, "spanner": _spanner}
