"""The DSpark drafter in torch: the only rooms of the worker that hold a tensor.

A floor each, bottom up: dequant, norms, rope, kv_quant - linear, weights - streams, attention,
experts, heads, window_kv - block - drafter - load.
"""
