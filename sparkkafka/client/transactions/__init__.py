"""Transactions: their requests, what a sender writes in, and descriptions of open ones.

Begin with `requests.py`; the steps of a Producer are in `producer/transaction_steps.py`.
"""
