"""`bisect-cfg doctor`: environment and settings against what is known, before a trial is spent.

examine       the command's story: environments, what the script sets, findings, GPU probes, one answer
findings      what is wrong, when, and what to do: known failures, and the table of `rules.yaml`
mismatches    whether the processes of one run find the same environment
gpu_probes    what computes on the GPUs, in the interpreter that trains
"""
