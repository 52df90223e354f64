"""Where trials run. Whoever asks for one submits plain data, and does not know which engine it is."""
