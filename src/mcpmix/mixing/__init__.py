"""What to train on: MCPMix, RLA and the mixing baselines, all behind one contract (`strategy`)."""
