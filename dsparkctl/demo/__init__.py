"""A small engine against a real worker, over real sockets, on an embedded tiny checkpoint.

Below the command line, above the worker: it starts a worker process and speaks the contract to it.
"""
