"""Stores what went over the wire of each test, and sends it again to another server.

A recording is a YAML file for each test, with a list of exchanges in the order in which they ended:

- `operation`: the service's name of it;
- `request`: what was sent;
- `answer`: what came back.

Values that differ in every run are replaced by placeholders such as `<shard 1>`: the same value has the same
placeholder in the whole file. `Rules` names the fields.
"""

from multiclouddb_certify.recordings.recorder import Recorder
from multiclouddb_certify.recordings.replay import Difference, Known, replay
from multiclouddb_certify.recordings.rules import Codec, Rules, Sender

__all__ = ["Codec", "Difference", "Known", "Recorder", "Rules", "Sender", "replay"]
