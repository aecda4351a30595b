"""Layer 5: the command line. The only place that prints, shows progress and sets exit codes."""
