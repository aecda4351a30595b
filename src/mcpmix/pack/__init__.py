"""One file for a machine without internet: the package with all it needs, or what a run has made."""
