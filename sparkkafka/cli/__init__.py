"""The command `sparkkafka`: topics, groups and records of a cluster from a terminal.

`app.main` runs it and turns every error into one line. `commands.py` has the table of verbs and the
options that hold for all; `session.py` is what a verb gets: settings, a deadline, an Admin.
`tables.py` prints. A verb's module is imported when the verb is used, so that `--help` is quick.
"""
