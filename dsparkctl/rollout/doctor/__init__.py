"""The doctor: looks at the hosts, judges what it saw, and changes nothing.

`collector` runs on the hosts and only looks; `checks` judge values and only judge; `examine` sends
the one and asks the others.
"""
