"""Sources of a first step's rows: files of a tenant's store, an uploaded table, or the answers of a batch."""
