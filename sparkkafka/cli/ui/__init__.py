"""`ui`: a local web page of brokers, topics, consumer groups, checkpoints and dead letters.

`verb.py` has the options, `server.py` serves the files of the page and JSON, `responses.py` makes
the JSON from the snapshots that a thread takes, and `dead_letters.py` reads records.
"""

from sparkkafka.cli.ui.verb import app

__all__ = ["app"]
