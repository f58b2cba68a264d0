CREATE TABLE passage_index (
    id text NOT NULL,
    tenant_id text NOT NULL,
    collection_id text NOT NULL,
    name text,
    max_tokens integer NOT NULL,
    overlap_tokens integer NOT NULL,
    language text NOT NULL,
    embedding_model text,
    embedding jsonb,
    priority text NOT NULL,
    completion_window text NOT NULL,
    metadata jsonb,
    api_key_id text,
    idempotency_key text,
    fingerprint text NOT NULL,
    state text DEFAULT 'in_progress' NOT NULL,
    reason text,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    deleted_at timestamptz,
    documents_key text,
    signature jsonb,
    num_documents bigint DEFAULT '0' NOT NULL,
    num_indexed bigint DEFAULT '0' NOT NULL,
    failed_codes jsonb DEFAULT '{}' NOT NULL,
    failures jsonb DEFAULT '[]' NOT NULL,
    num_passages bigint DEFAULT '0' NOT NULL,
    num_without_vector bigint DEFAULT '0' NOT NULL,
    size_bytes bigint DEFAULT '0' NOT NULL,
    claim_fence bigint DEFAULT '0' NOT NULL,
    claimed_by text,
    claimed_until timestamptz,
    look_at timestamptz,
    num_tries integer DEFAULT '0' NOT NULL,
    tokenizer_model text,
    tokenizer_sha256 text,
    CONSTRAINT passage_index_pkey PRIMARY KEY (id),
    CONSTRAINT passage_index_tenant_id_idempotency_key_key UNIQUE (tenant_id, idempotency_key),
    CONSTRAINT passage_index_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT passage_index_collection_id_fkey FOREIGN KEY(collection_id) REFERENCES collection (id),
    CONSTRAINT passage_index_state_check CHECK (
        state IN ('in_progress', 'cancelling', 'completed', 'failed', 'cancelled')
    ),
    CONSTRAINT passage_index_priority_check CHECK (priority IN ('urgent', 'normal', 'bulk'))
) WITH (fillfactor = 70);
CREATE INDEX passage_index_collection_id_idx ON passage_index (collection_id);
CREATE INDEX passage_index_open_idx ON passage_index (tenant_id) WHERE state IN ('in_progress', 'cancelling');
CREATE INDEX passage_index_purge_idx ON passage_index (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX passage_index_tenant_id_created_at_id_idx ON passage_index (tenant_id, created_at, id);

CREATE TABLE index_segment (
    index_id text NOT NULL,
    number integer NOT NULL,
    object_key text NOT NULL,
    num_documents integer NOT NULL,
    num_passages integer,
    size_bytes bigint DEFAULT '0' NOT NULL,
    CONSTRAINT index_segment_pkey PRIMARY KEY (index_id, number),
    CONSTRAINT index_segment_index_id_fkey FOREIGN KEY(index_id) REFERENCES passage_index (id)
);
CREATE INDEX index_segment_object_key_idx ON index_segment (object_key);

CREATE TABLE passage_index_stage (
    passage_index_id text NOT NULL,
    number integer NOT NULL,
    batch_id text,
    num_lines bigint NOT NULL,
    begun_at timestamptz DEFAULT now() NOT NULL,
    done_at timestamptz,
    CONSTRAINT passage_index_stage_pkey PRIMARY KEY (passage_index_id, number),
    CONSTRAINT passage_index_stage_passage_index_id_fkey FOREIGN KEY(passage_index_id) REFERENCES passage_index (id),
    CONSTRAINT passage_index_stage_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (id)
);
CREATE INDEX passage_index_stage_batch_id_idx ON passage_index_stage (batch_id) WHERE batch_id IS NOT NULL;
