"""The phases of a bisection, a module each, in the order of the work: reproduce, factors, start, isolate, locate,
recommend."""
