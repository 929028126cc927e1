"""The Schema Registry: a client of Confluent's REST API, which Apicurio and others have too.

Begin with `client.py`, whose `RegistryClient` has a method for each question. `rest_service.py`
sends one request, to any of several servers, within a deadline; `answers.py` validates answers;
`references.py` finds what a schema refers to; `cache.py` keeps what cannot change; and
`subjects.py` has the rules by which topics and records have subjects.
"""
