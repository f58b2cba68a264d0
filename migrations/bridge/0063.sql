CREATE TABLE schedule_watch (
    id SMALLINT DEFAULT '1' NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT schedule_watch_pkey PRIMARY KEY (id),
    CONSTRAINT schedule_watch_id_check CHECK (id = 1)
);
ALTER TABLE tenant ADD COLUMN enabled_at TIMESTAMP WITH TIME ZONE;
