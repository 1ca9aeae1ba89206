"""The small engine with the real client against a real worker, on an embedded tiny checkpoint.

Below the command line, above client, worker and engine: it starts a worker process, runs the engine
and compares what came of it.
"""
