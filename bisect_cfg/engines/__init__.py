"""Where trials run. Whoever asks for one submits it, and does not know which engine it is."""
