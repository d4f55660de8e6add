"""Which settled groups train: rules, and the gate that asks them."""
