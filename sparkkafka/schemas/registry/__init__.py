"""The Schema Registry: a client of Confluent's REST API, which Apicurio and others have too.

Begin with `client.py`, whose `RegistryClient` has a method for each request, and caches what cannot
change. `rest_service.py` sends one request, to any of several servers, within a deadline;
`responses.py` validates what they answer.
"""
