"""A scripted DynamoDB server with streams; the unmodified boto3 works with it.

habits      the server's normal behaviour      clock      its clock
troubles    failures on demand                 journal    the received calls
server      `ScriptedStreams`, the server      http       its HTTP server

The emulator imports no code from other packages of multiclouddb. If the emulator and a provider
shared code, both could have the same error, and the tests would not find this error.
"""

from multiclouddb_dynamo_emulator.habits import ChildFilter, Habits, Order, Remains, TimeStart
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
    "TimeStart",
    "Trouble",
    "Troubles",
    "Violation",
]
