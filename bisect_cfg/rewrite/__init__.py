"""The user's own files: where a setting is written, the edit that changes it, and writing that edit."""
