"""Both sides of the wire in one thread, on a clock and links that are made up (§4 to §10).

Everything that decides is the real thing: rounds, ledger, breaker, link, counters on rank 0, the
desk on the worker, the messages between them. Engine, tensors, drafter, network and time are played
here, from one seed, so that whatever goes wrong goes wrong again.

```
 run      one seed: faults fall, the engine steps, rank 0's round runs, everything is checked
 world    clock, chance, the terms of a seed      text      tokens, states and rows: who knows what
 faults   which fault falls when, as data         engine    requests, slots, verification
 network  dial and exchange; what gets lost       links     one connection; the trace
 worker   the real desk, a drafter that knows     answering a worker that fails
 spark    the real client, put together           spoil     values that §6.3 refuses
 rows     rank 0's ring and staging, in bytes     judge     a reply against §6.3, naively
 checks   the invariants of a round               recount   breaker, backoff, dirt, naively
 sides    both sides' state, side by side         report    many seeds
```
"""
