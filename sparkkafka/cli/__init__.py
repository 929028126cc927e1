"""The command `sparkkafka`: topics, groups and records of a cluster from a terminal.

`app.main` runs it and reports every error as one line. `commands.py` lists the verbs and defines
the options that all of them share; `session.py` has what a verb needs: settings, a deadline, an
Admin. `tables.py` prints. Each verb is a module of its name, imported when the verb is used, so
that `--help` is quick.
"""
