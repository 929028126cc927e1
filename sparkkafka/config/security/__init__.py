"""Security settings: security.*, ssl.* and sasl.*.

`options.py` is what was given, `settings.py` what a connection needs, `rows.py` the rows of the
option table, `sasl.py` what the sasl.* settings choose together, `references.py` values that are
kept elsewhere.
"""
