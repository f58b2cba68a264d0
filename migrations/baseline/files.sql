CREATE TABLE file (
    id text NOT NULL,
    tenant_id text NOT NULL,
    purpose text NOT NULL,
    filename text NOT NULL,
    size_bytes bigint NOT NULL,
    object_key text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz,
    deleted_at timestamptz,
    num_requests bigint,
    estimated_input_tokens bigint,
    estimated_output_tokens bigint,
    purged_at timestamptz,
    purge_again_at timestamptz,
    CONSTRAINT file_pkey PRIMARY KEY (id),
    CONSTRAINT file_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id)
);
CREATE INDEX file_kept_idx ON file (tenant_id) INCLUDE (size_bytes, expires_at) WHERE deleted_at IS NULL;
CREATE INDEX file_object_key_idx ON file (object_key);
CREATE INDEX file_purge_idx ON file (LEAST(expires_at, deleted_at)) WHERE purged_at IS NULL;
CREATE INDEX file_tenant_id_created_at_id_idx ON file (tenant_id, created_at, id);

CREATE TABLE upload (
    id text NOT NULL,
    tenant_id text NOT NULL,
    state text DEFAULT 'pending' NOT NULL,
    purpose text NOT NULL,
    filename text NOT NULL,
    mime_type text NOT NULL,
    size_bytes bigint NOT NULL,
    file_expires_after_seconds bigint,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    part_ids text[],
    file_id text,
    claim_fence bigint DEFAULT '0' NOT NULL,
    claimed_until timestamptz,
    claimed_by text,
    CONSTRAINT upload_pkey PRIMARY KEY (id),
    CONSTRAINT upload_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT upload_file_id_fkey FOREIGN KEY(file_id) REFERENCES file (id),
    CONSTRAINT upload_state_check CHECK (state IN ('pending', 'completed', 'cancelled', 'expired'))
) WITH (fillfactor = 70);
CREATE INDEX upload_ended_idx ON upload (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX upload_expiry_idx ON upload (expires_at) WHERE state = 'pending';
CREATE INDEX upload_file_id_idx ON upload (file_id);
CREATE INDEX upload_pending_idx ON upload (tenant_id) WHERE state = 'pending';

CREATE TABLE upload_part (
    id text NOT NULL,
    upload_id text NOT NULL,
    tenant_id text NOT NULL,
    size_bytes bigint NOT NULL,
    object_key text NOT NULL,
    md5 text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    purge_again_at timestamptz,
    head_bytes bigint NOT NULL,
    tail_bytes bigint NOT NULL,
    num_requests bigint NOT NULL,
    estimated_input_tokens bigint NOT NULL,
    estimated_output_tokens bigint NOT NULL,
    CONSTRAINT upload_part_pkey PRIMARY KEY (id),
    CONSTRAINT upload_part_upload_id_fkey FOREIGN KEY(upload_id) REFERENCES upload (id),
    CONSTRAINT upload_part_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id)
);
CREATE INDEX upload_part_kept_idx ON upload_part (tenant_id) INCLUDE (size_bytes) WHERE deleted_at IS NULL;
CREATE INDEX upload_part_object_key_idx ON upload_part (object_key);
CREATE INDEX upload_part_purge_idx ON upload_part (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX upload_part_upload_id_idx ON upload_part (upload_id);
