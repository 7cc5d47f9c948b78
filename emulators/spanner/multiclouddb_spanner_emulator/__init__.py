"""A scripted Cloud Spanner server with change streams, over gRPC, for the unmodified google-cloud-spanner.

habits      the server's normal behaviour      clock      its clock
troubles    failures on demand                 journal    the received calls
server      `ScriptedSpanner`, the server      service    its gRPC services

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
