"""One module a page: what it asks of `jobs`, and which template shows it.

None of them changes anything, or knows another page.
"""
