"""Remote DSpark drafting: the contract, both sides of its wire, and the operator's tools."""

__version__ = "0.1.0"

CONTRACT_VERSION = "1.8"
"""The version of the remote-dspark contract that both sides of this distribution serve (§13)."""
