"""What a failure looks like: in a log (`excerpt`, `tracebacks`, `signals`), in metrics (`health`), as a `signature`."""
