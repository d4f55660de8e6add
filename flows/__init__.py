"""The flows: prepare, train, evaluate."""
