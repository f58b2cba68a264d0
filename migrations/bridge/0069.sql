ALTER TABLE run_step ADD COLUMN cpu_seconds FLOAT DEFAULT '0' NOT NULL;
ALTER TABLE run ADD COLUMN error_code TEXT;
CREATE INDEX file_named_idx ON file (id) WHERE deleted_at IS NOT NULL AND filename <> '';
CREATE INDEX upload_file_id_idx ON upload (file_id);
