"""The simulated vLLM: HTTP servers whose engine is `tao.node`, for machines without a GPU."""
