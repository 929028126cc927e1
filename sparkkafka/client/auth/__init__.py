"""Who a connection is, and what it trusts: SASL mechanisms, tokens, certificate stores.

Begin with `authentication.py`: TLS settings, and SASL with its re-authentication.
"""
