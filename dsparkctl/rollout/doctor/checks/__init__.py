"""The checks: what was seen against what dspark.yaml wants, each a pure function to findings."""
