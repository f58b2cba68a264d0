"""Commands of operators for the database: its schema, backups, and its move to a newer Postgres."""
