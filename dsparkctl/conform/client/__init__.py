"""Whatever connects, held against the contract, by a worker that does one wrong thing a time."""
