"""How long a round takes, part by part, beside the matrix products it cannot do without.

`shapes` and `synthetic` make a model without a checkpoint, `stopwatch` looks into one, `products`
finds its floor, `course` plays rounds through a real desk and a real socket, `report` prints.
"""
