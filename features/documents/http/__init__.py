"""`/v1/collections`, `/v1/extractions` and `/v1/reviews`: the HTTP routes of `features.documents`."""
