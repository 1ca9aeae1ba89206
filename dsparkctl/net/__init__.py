"""The carriers: one request goes out, one reply comes back, or nothing does in time (§5).

Nothing here knows a session, a slot or a round; above `ask`, nothing knows a socket.
"""
