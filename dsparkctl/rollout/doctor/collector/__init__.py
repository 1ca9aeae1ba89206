"""What a host says of itself: travels there in a parcel, looks, prints one JSON object.

Holds to the standard library of Python 3.9, imports nothing else of ours, changes nothing, waits
for nothing without a bound. Judges nothing: `doctor.checks` do, on the operator's machine.
"""
