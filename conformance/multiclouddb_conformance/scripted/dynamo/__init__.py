"""A scripted DynamoDB with streams: over the wire, for the unmodified boto3.

habits      what it does in its own way        clock      its clock
troubles    what goes wrong on demand          journal    what was asked of it
server      `ScriptedStreams`, all of it
"""

from multiclouddb_conformance.scripted.dynamo.habits import ChildFilter, Habits, Order, Remains
from multiclouddb_conformance.scripted.dynamo.journal import Call, Journal, Violation
from multiclouddb_conformance.scripted.dynamo.poison import Poison
from multiclouddb_conformance.scripted.dynamo.server import ScriptedStreams, ShardState
from multiclouddb_conformance.scripted.dynamo.troubles import Trouble, Troubles

__all__ = [
    "Call",
    "ChildFilter",
    "Habits",
    "Journal",
    "Order",
    "Poison",
    "Remains",
    "ScriptedStreams",
    "ShardState",
    "Trouble",
    "Troubles",
    "Violation",
]
