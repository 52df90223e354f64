"""What the user runs and what it sets: from a command line and a probe's events to factors.

A command is taken apart without running it (`launchers`, `script`; `launch_settings` for what a launcher hands on), the
names and values a user types are read by one parser (`good`), and what the first run was seen to set (`captured`) is
held against the library's defaults (`factors`; `pinned` for what no trial varies). Nothing here runs the script.
"""
