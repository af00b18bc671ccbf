"""Running a plan: making networks, executing jobs in killable children, cache, journal, resume."""
