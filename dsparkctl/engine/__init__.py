"""The small engine: a tiny model that really speculates (readings of the contract come true)."""
