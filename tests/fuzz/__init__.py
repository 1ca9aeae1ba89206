"""Every parser against bytes that nobody meant: `python -m tests.fuzz`, and a kept corpus."""
