"""The rules both sides of the wire follow: pure, role-blind, and without clock, chance or tensor.

Value in, (new value, decision) out.
"""
