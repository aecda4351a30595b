"""Layer 2: the stages. Each is `run(...) -> Artifact`; they meet only through folders."""
