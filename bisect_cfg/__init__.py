"""bisect-cfg: which of my settings break this GRPO run, and what may I use instead?"""
