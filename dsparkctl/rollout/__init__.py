"""The operator's reach: plans are pure, hosts are behind one protocol, only `execute` acts.

Knows neither a terminal nor torch; `dsparkctl.cli` renders what is decided and done here.
"""
