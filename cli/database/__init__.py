"""Commands of operators for the database: schema, backups, and the move to a newer Postgres."""
