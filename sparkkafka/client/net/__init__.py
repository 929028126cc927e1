"""Connections to brokers: addresses, TCP, TLS, frames, requests and responses under a deadline.

Begin with `connection.py`. `pool.py` keeps one connection for each broker and says how soon to
connect again, `connecting.py` opens sockets and says why a listener refused us or hung up.
"""
