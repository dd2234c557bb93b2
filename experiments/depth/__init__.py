"""When depth at equilibrium pays: DEQs beside plain and unrolled networks, on many tasks."""
