CREATE TABLE passage_index (
    id text NOT NULL,
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
    expires_at timestamptz NOT NULL,
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
    tokenizer_model text,
    tokenizer_sha256 text,
    CONSTRAINT passage_index_pkey PRIMARY KEY (id),
    CONSTRAINT passage_index_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE,
    CONSTRAINT passage_index_collection_id_fkey FOREIGN KEY(collection_id) REFERENCES collection (id),
    CONSTRAINT passage_index_priority_check CHECK (priority IN ('urgent', 'normal', 'bulk'))
) WITH (fillfactor = 70);
CREATE INDEX passage_index_collection_id_idx ON passage_index (collection_id);
CREATE INDEX passage_index_purge_idx ON passage_index (deleted_at) WHERE deleted_at IS NOT NULL;

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

CREATE TABLE passage_fill (
    id text NOT NULL,
    models text[] DEFAULT '{}' NOT NULL,
    CONSTRAINT passage_fill_pkey PRIMARY KEY (id),
    CONSTRAINT passage_fill_id_fkey FOREIGN KEY(id) REFERENCES flow (id) ON DELETE CASCADE
);
