"""Live runs: the same decisions on real vLLM servers, or on simulated ones that speak the same HTTP."""
