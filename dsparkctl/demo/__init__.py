"""A round made visible: a real worker, a tiny checkpoint, and an engine that plays a short script.

`script` decides what is asked, `play` asks it and holds every answer against the rules, and
`worker_process` starts the worker. Later the engine grows onto the full client; the script stays.
"""
