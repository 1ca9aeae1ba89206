"""The worker: keeps a window of tap rows per request slot and drafts from it."""
