"""Authentication of a connection, and trust: SASL mechanisms, tokens, certificate stores.

Begin with `sasl.py`: it has the mechanisms, and authenticates and re-authenticates a connection.
"""
