"""What crontask uses of the outside world: databases, HTTP, clocks."""
