"""The seeds that every test run goes through."""

FIXED = (4, 33, 24, 57, 42, 12, 1, 3, 37, 9)
"""Rough weather and many kinds of faults first; among them one slot, no breaker, margins."""
