"""Hardening inside other libraries' training loops; each module needs its library, an extra."""
