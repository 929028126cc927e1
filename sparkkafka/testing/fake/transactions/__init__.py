"""The fake cluster's transactions.

Begin with `transactions.py`.
"""
