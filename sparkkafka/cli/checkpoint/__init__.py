"""`checkpoint`: look into the checkpoint of a streaming query, compare, check and reset it.

`command.py` has the verb; each of its commands is a function of a module beside it.
"""
