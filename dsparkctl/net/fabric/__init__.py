"""The contract's second carrier, `o1tcp://` and `o1rdma://` (§5): ofl's semantics on libfabric.

O1's own wire format is not public. This is an implementation of the contract's words on it, two of
whose ends understand each other; nothing is claimed about any other.
"""
