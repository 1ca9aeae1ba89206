"""Worker and engine for minutes under faults that fall by a seed: `make soak MINUTES=`."""
