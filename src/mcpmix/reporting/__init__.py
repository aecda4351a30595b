"""Layer 2: tables, charts and the page of a run, from numbers and pixels."""
