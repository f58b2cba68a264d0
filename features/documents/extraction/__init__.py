"""Extraction of fields from documents: texts with positions, questions, grounded answers. No SQL, no HTTP."""
