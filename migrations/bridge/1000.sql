-- Columns of a past go. The micro-units of a million tokens are the pico-units of one: prices change their names alone.

DROP TABLE cookie_secret;
DROP INDEX file_named_idx;
ALTER TABLE batch DROP COLUMN cost_micros;
ALTER TABLE forecast DROP COLUMN running_lines;
ALTER TABLE ledger DROP COLUMN cost_micros;
ALTER TABLE ledger RENAME COLUMN input_price_micros TO input_price_picos;
ALTER TABLE ledger RENAME COLUMN cached_input_price_micros TO cached_input_price_picos;
ALTER TABLE ledger RENAME COLUMN output_price_micros TO output_price_picos;
ALTER TABLE ledger RENAME COLUMN reading_price_micros TO reading_price_picos;
ALTER TABLE ledger ALTER COLUMN input_price_picos SET NOT NULL, ALTER COLUMN output_price_picos SET NOT NULL,
    ALTER COLUMN priority SET NOT NULL, ALTER COLUMN num_truncated SET NOT NULL;
ALTER TABLE model RENAME COLUMN input_price_micros TO input_price_picos;
ALTER TABLE model RENAME COLUMN cached_input_price_micros TO cached_input_price_picos;
ALTER TABLE model RENAME COLUMN output_price_micros TO output_price_picos;
ALTER TABLE worker ALTER COLUMN running_lines SET DEFAULT '{}', ALTER COLUMN running_lines SET NOT NULL;
ALTER TABLE api_key ALTER COLUMN scopes DROP DEFAULT;
-- No thoughts were counted before: a zero says so.
ALTER TABLE batch ADD COLUMN reasoning_tokens bigint DEFAULT '0' NOT NULL;
ALTER TABLE ledger ADD COLUMN reasoning_tokens bigint DEFAULT '0' NOT NULL;
ALTER TABLE checkpoint ALTER COLUMN model_fingerprint DROP DEFAULT;
ALTER TABLE fair_share ALTER COLUMN waiting_since DROP DEFAULT;
-- Where the server names what keeps a column from being null, it is named as of a new table.
DO $do$
    DECLARE
        kept record;
    BEGIN
        FOR kept IN SELECT conrelid::regclass AS place, conname FROM pg_constraint
            WHERE conrelid IN ('ledger'::regclass, 'model'::regclass) AND conname LIKE '%price_micros_not_null'
        LOOP
            EXECUTE format(
                'ALTER TABLE %s RENAME CONSTRAINT %I TO %I', kept.place, kept.conname,
                replace(kept.conname, 'micros', 'picos')
            );
        END LOOP;
    END
$do$;

ALTER TABLE batch ADD COLUMN is_growing boolean DEFAULT 'false' NOT NULL;
ALTER TABLE chunk ADD COLUMN segment_key text;
ALTER TABLE extraction ADD COLUMN early_end text, ADD COLUMN num_provisional bigint DEFAULT '0' NOT NULL;
CREATE TABLE input_segment (
    batch_id text NOT NULL,
    first_line bigint NOT NULL,
    object_key text NOT NULL,
    size_bytes bigint NOT NULL,
    CONSTRAINT input_segment_pkey PRIMARY KEY (batch_id, first_line),
    CONSTRAINT input_segment_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (id)
);
CREATE INDEX input_segment_object_key_idx ON input_segment (object_key);

CREATE TABLE input_digest (
    batch_id text NOT NULL,
    digest bytea NOT NULL,
    line_no bigint NOT NULL,
    CONSTRAINT input_digest_pkey PRIMARY KEY (batch_id, digest),
    CONSTRAINT input_digest_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (id)
);

CREATE TABLE extraction_document (
    extraction_id text NOT NULL,
    number integer NOT NULL,
    document jsonb NOT NULL,
    node integer,
    spans integer[] DEFAULT '{}' NOT NULL,
    CONSTRAINT extraction_document_pkey PRIMARY KEY (extraction_id, number),
    CONSTRAINT extraction_document_extraction_id_fkey FOREIGN KEY(extraction_id) REFERENCES extraction (id)
        ON DELETE CASCADE
);
ALTER TABLE batch ADD COLUMN name text;

ALTER TABLE ledger ADD COLUMN wasted_input_tokens bigint DEFAULT '0' NOT NULL,
    ADD COLUMN wasted_output_tokens bigint DEFAULT '0' NOT NULL;
CREATE INDEX ledger_wasted_idx ON ledger (created_at) WHERE wasted_input_tokens > 0 OR wasted_output_tokens > 0;

-- What chunks that were planned before need of an engine is not known: workers of servers refuse it by name.
ALTER TABLE chunk ADD COLUMN needs bigint DEFAULT '0' NOT NULL;
DROP INDEX chunk_open_idx;
CREATE INDEX chunk_open_idx ON chunk (batch_id, id) WHERE state IN ('ready','leased');
ALTER TABLE batch ADD COLUMN needs bigint DEFAULT '0' NOT NULL, ADD COLUMN engine_choice text DEFAULT 'same' NOT NULL,
    ADD COLUMN is_reproducible boolean DEFAULT 'false' NOT NULL, ADD COLUMN engine text, ADD COLUMN engine_dtype text,
    ADD CONSTRAINT batch_engine_choice_check CHECK (engine_choice IN ('same', 'any'));
ALTER TABLE worker ADD COLUMN engine text DEFAULT 'tokenmill' NOT NULL, ADD COLUMN engine_version text,
    ADD COLUMN engine_dtype text, ADD COLUMN meets bigint DEFAULT '0' NOT NULL,
    ADD COLUMN num_tokens bigint DEFAULT '0' NOT NULL, ADD COLUMN speed jsonb;
CREATE TABLE served_engine (
    model text NOT NULL,
    kind text NOT NULL,
    version text NOT NULL,
    meets bigint NOT NULL,
    may_meet bigint NOT NULL,
    findings jsonb DEFAULT '{}' NOT NULL,
    probe_tokens bigint DEFAULT '0' NOT NULL,
    probed_at timestamptz,
    due_at timestamptz,
    prober_id text,
    probed_until timestamptz,
    seen_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT served_engine_pkey PRIMARY KEY (model, kind, version)
);
