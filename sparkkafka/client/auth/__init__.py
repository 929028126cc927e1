"""Who a connection is, and what it trusts: SASL mechanisms, tokens, certificate stores.

Begin with `sasl.py`: the mechanisms, and how a connection authenticates and re-authenticates.
"""
