"""Connections to brokers: addresses, TCP, TLS, frames, requests and replies under a deadline.

Begin with `connection.py`; `pool.py` keeps one connection per broker, `refusals.py` says in words
why a listener refused us or hung up.
"""
