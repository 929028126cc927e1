"""Writes that are visible once or not at all: tasks' transactions, and a micro-batch's decision.

Begin with `commit.py`.
"""
