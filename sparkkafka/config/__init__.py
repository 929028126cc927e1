"""Options and settings as users give them, the table of all, and the frozen values that come out.

Begin with `options.py` (the connector) or `client_settings.py` (Consumer, Producer, Admin). A new
option is a row in `option_table.py`. `parsed_options.py` checks them and reports misspelt ones.
"""
