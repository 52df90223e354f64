"""What a failure means: signatures, known issues, the environment. Nothing here imports torch.

signature     what makes two failures the same one
knowledge     known failures, as data
explain       a log in, what it means out
fingerprint   where a trial runs: versions, GPUs, driver
findings      what is worth saying before a trial is spent
mismatches    whether the processes of one run find the same environment
gpu           whether the GPUs compute what they should
"""
