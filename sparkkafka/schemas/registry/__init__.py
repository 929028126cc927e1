"""The Schema Registry: a client of Confluent's REST API, which Apicurio and others have too.

Begin with `client.py`, whose `RegistryClient` has a method for each question. `asking.py` gets one
answer, from any of several servers, within a deadline; `answers.py` reads answers, none of which is
believed; `references.py` finds what a schema refers to; `cache.py` keeps what cannot change; and
`subjects.py` has the rules by which topics and records have subjects.
"""
