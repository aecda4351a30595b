"""Layer 2: synthetic counterparts and where training gets them from."""
