"""The web page of runs: what they are doing, their pairs, curves and results; and judgements by people."""
