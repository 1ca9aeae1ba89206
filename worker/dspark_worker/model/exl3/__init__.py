"""EXL3: weights that stay packed as trellis codes, and the arithmetic around them.

From the bottom: `codebook` and `tiles` turn codes into numbers, `hadamard` turns activations,
`packed` is one layer as its file holds it, `reading` takes it from there, `cache` keeps decoded
matrices within a budget, `linear` is what the model calls.
"""
