"""Admission for `api.door`: known keys, rates, and limits on requests in flight."""
