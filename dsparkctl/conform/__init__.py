"""Any worker held against the contract, black-box, clause by clause.

Every check sends bytes to a data listener and judges what comes back: by §, and by the readings
where the contract leaves a choice. It shares the tables of `contract` and the pure rules of `state`
with both sides, and no line of a worker.
"""
