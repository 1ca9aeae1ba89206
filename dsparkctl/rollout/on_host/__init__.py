"""Programs that are sent to a host over stdin: the standard library of Python 3.8, and no import of
ours. Each takes one JSON object as its argument and prints one JSON object."""
