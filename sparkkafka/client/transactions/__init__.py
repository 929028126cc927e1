"""Transactions: their requests, a Producer's steps, and how to look into them.

Begin with `requests.py`.
"""
