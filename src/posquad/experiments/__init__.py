"""The paper's experiments and ours: framework, published claims, records, one package each."""
