"""The contract as code: tables, codes, framing and messages, receipts, identities and endpoints.

Everything here is pure and stands on the standard library alone; it never opens, waits or logs.
"""
