"""The crontask command."""
