"""A way to watch a draft from inside: golden replays and debugging read intermediate values by it.

A `Trace` is called with a name and a tensor, and must copy what it wants to keep. Of appended rows:
`main_x` [n, D]. Of a draft of b requests: `routed_experts` [b·N, k] once a layer, `head_hidden`
[b·N, D], `markov_bias` [b, V] once a step, `base_logits` [b, N, V], `conf_logit` [b, n_steps].
Absent, it costs one comparison each.
"""

from collections.abc import Callable

from torch import Tensor

Trace = Callable[[str, Tensor], None]
