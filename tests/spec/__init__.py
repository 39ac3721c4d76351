"""The specification in `spec/`, checked by TLC: its models, the rules left out one by one, and traces of the code."""
