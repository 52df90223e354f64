"""What every room stands on: plain types, text, and what failures look like. Nothing here imports torch."""
