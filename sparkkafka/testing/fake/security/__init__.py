"""The fake cluster's ACLs and SCRAM users: stored as a broker stores them, and enforced.

Begin with `state.py`; `authorizer.py` says which ACL a request needs, `sasl.py` who sent it.
"""
