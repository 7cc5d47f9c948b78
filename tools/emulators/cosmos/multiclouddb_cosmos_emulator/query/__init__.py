"""Runs queries in the subset of Cosmos DB's SQL that the README describes.

tokens, words, expressions, parser    from text to a tree       tree           its nodes
evaluation, comparing                 values of expressions     execution      from documents to results
pinning                               whether one partition is enough
plan                                  the work of a client that reads several partitions
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.query.evaluation import Compiler
from multiclouddb_cosmos_emulator.query.execution import Execution
from multiclouddb_cosmos_emulator.query.parser import parse
from multiclouddb_cosmos_emulator.query.plan import needs_plan, plan_of

__all__ = ["Execution", "compiled", "needs_plan", "predicate", "query_plan", "run_over"]


def _parts(body: Any) -> tuple[str, dict[str, Any]]:
    text = body.get("query") if isinstance(body, dict) else None
    if not isinstance(text, str):
        raise bad_request("The body has no query.")
    given = body.get("parameters") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) and "name" in each for each in given):
        raise bad_request("The parameters of a query have to be a list of names and values.")
    return text, {str(each["name"]): each.get("value") for each in given}


def compiled(body: Any) -> Execution:
    """Compile the query in the body of a request."""
    text, parameters = _parts(body)
    return Execution(parse(text), parameters)


def query_plan(body: Any) -> dict[str, Any]:
    """Make the plan of the query in the body of a request."""
    text, parameters = _parts(body)
    select = parse(text)
    Execution(select, parameters)
    return plan_of(select, Compiler(parameters))


def run_over(body: Any, documents: list[Any]) -> list[Any]:
    """Return the results of a query over a few documents."""
    return list(compiled(body).results(documents))


def predicate(condition: Any) -> Callable[[dict[str, Any]], bool]:
    """Return the condition of a patch, `FROM c WHERE …`."""
    if not isinstance(condition, str):
        raise bad_request("The condition of a patch has to be a text.")
    return Execution(parse(f"SELECT * {condition}"), {}).allows
