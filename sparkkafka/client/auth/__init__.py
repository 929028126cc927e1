"""Who a connection is, and what it trusts: SASL mechanisms, tokens, certificate stores.

Begin with `credentials.py`: what a connection is secured with, and SASL on it.
"""
