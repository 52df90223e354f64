"""The story of a bisection (`story`), told over one pass (`study`): its phases, a module each."""
