"""What a bisection remembers: its trials, in one store (Optuna), and the folder they lie in."""
