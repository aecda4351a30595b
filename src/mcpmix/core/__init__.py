"""Layer 0: configuration, errors, artefacts, seeds, runtime, tracking."""
