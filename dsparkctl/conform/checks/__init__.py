"""The checks, a room for each part of the contract; each yields findings and needs no other."""
