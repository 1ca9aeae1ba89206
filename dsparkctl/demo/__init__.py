"""A client of the real kind against a real worker, in one command (issue: demo).
"""
