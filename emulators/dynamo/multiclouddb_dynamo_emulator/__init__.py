"""A scripted DynamoDB with streams: over the wire, for the unmodified boto3.

habits      what it does in its own way        clock      its clock
troubles    what goes wrong on demand          journal    what was asked of it
server      `ScriptedStreams`, all of it       http       what it listens with

It imports nothing of the kit: what it had in common with a provider, both could get wrong alike.
"""

from multiclouddb_dynamo_emulator.habits import ChildFilter, Habits, Order, Remains
from multiclouddb_dynamo_emulator.journal import Call, Journal, Violation
from multiclouddb_dynamo_emulator.poison import Poison
from multiclouddb_dynamo_emulator.server import ScriptedStreams, ShardState
from multiclouddb_dynamo_emulator.troubles import Trouble, Troubles

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
