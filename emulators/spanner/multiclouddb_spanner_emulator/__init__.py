"""A scripted Cloud Spanner server with change streams, over gRPC, for the unmodified google-cloud-spanner.

habits      what it does in its own way        clock      its clock
troubles    what goes wrong on demand          journal    what was asked of it
server      `ScriptedSpanner`, all of it       service    what it listens with

The emulator imports nothing else from multiclouddb. If they shared code, the emulator and a provider could
have the same error, and the tests would not find it.
"""

from multiclouddb_spanner_emulator.database import Write
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.journal import Call, Journal
from multiclouddb_spanner_emulator.reading import StreamQuery
from multiclouddb_spanner_emulator.server import PartitionState, ScriptedSpanner
from multiclouddb_spanner_emulator.troubles import Trouble, Troubles

__all__ = [
    "Call",
    "Habits",
    "Journal",
    "PartitionState",
    "ScriptedSpanner",
    "StreamQuery",
    "Trouble",
    "Troubles",
    "Write",
]
