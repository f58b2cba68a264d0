ALTER TABLE worker ADD COLUMN running_lines JSONB;
ALTER TABLE batch ADD COLUMN num_computed BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE forecast ADD COLUMN earliest_seconds FLOAT;
ALTER TABLE forecast ADD COLUMN latest_seconds FLOAT;
ALTER TABLE forecast ADD COLUMN told JSONB;
