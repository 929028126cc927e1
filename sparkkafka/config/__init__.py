"""Options and settings as users give them, the table of all, and the frozen values that come out.

Begin with `options.py` (the connector) or `client_settings.py` (Consumer, Producer, Admin). A new
option is a row in `option_table.py`. `unknown_options.py` has what happens with a misspelt one.
"""
