CREATE TABLE store_marker (
    id SMALLINT DEFAULT '1' NOT NULL,
    marker TEXT NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT store_marker_pkey PRIMARY KEY (id),
    CONSTRAINT store_marker_id_check CHECK (id = 1)
);
ALTER TABLE batch ADD COLUMN input_missed_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE batch ADD COLUMN deferred_until TIMESTAMP WITH TIME ZONE;
CREATE INDEX batch_deferred_idx ON batch (deferred_until) WHERE deferred_until IS NOT NULL;
ALTER TABLE chunk DROP CONSTRAINT chunk_state_check;
ALTER TABLE chunk ADD CONSTRAINT chunk_state_check CHECK (
    state IN ('planned', 'ready', 'leased', 'waiting', 'deferred', 'done', 'split', 'withdrawn')
);
CREATE INDEX chunk_deferred_idx ON chunk (batch_id) WHERE state = 'deferred';
