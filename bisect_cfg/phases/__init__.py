"""The phases of a bisection, a module each, in the order of the work: reproduce, start, isolate, locate, cure."""
