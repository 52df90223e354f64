"""What a failure means: signatures, known issues, the environment. Nothing here imports torch.

signature     what makes two failures the same one
knowledge     known failures, as data
explain       a log in, what it means out
environment   the fingerprint of where a trial runs
findings      what is worth saying before a trial is spent
ranks         whether the processes of one run find the same environment
gpu           whether the GPUs compute what they should
"""
