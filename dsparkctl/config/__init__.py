"""What a person writes down: `dspark.yaml`, and the HELLO parameters that follow from a checkpoint.

pydantic models and the loader that gives every error its file, line and key. Nothing here opens a
socket or reads a tensor.
"""
