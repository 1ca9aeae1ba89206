"""The flight recorder: the last messages of a connection, kept in files that Wireshark opens."""
