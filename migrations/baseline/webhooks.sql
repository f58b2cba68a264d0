CREATE TABLE webhook_endpoint (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    event_types text[] NOT NULL,
    secret text NOT NULL,
    old_secret text,
    old_secret_until timestamptz,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    disabled_at timestamptz,
    disabled_reason text,
    failing_since timestamptz,
    CONSTRAINT webhook_endpoint_pkey PRIMARY KEY (id),
    CONSTRAINT webhook_endpoint_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id)
);
CREATE INDEX webhook_endpoint_tenant_id_created_at_id_idx ON webhook_endpoint (tenant_id, created_at, id);

CREATE TABLE webhook_delivery (
    id text NOT NULL,
    endpoint_id text NOT NULL,
    tenant_id text NOT NULL,
    event_id text NOT NULL,
    event_type text NOT NULL,
    event_data jsonb NOT NULL,
    state text DEFAULT 'pending' NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    due_at timestamptz DEFAULT now() NOT NULL,
    fence bigint DEFAULT '0' NOT NULL,
    num_tries integer DEFAULT '0' NOT NULL,
    ended_at timestamptz,
    problem text,
    claimed_by text,
    CONSTRAINT webhook_delivery_pkey PRIMARY KEY (id),
    CONSTRAINT webhook_delivery_endpoint_id_fkey
        FOREIGN KEY(endpoint_id) REFERENCES webhook_endpoint (id) ON DELETE CASCADE,
    CONSTRAINT webhook_delivery_state_check CHECK (state IN ('pending', 'delivered', 'failed'))
) WITH (fillfactor = 70);
CREATE INDEX webhook_delivery_due_idx ON webhook_delivery (tenant_id, due_at) WHERE state = 'pending';
CREATE INDEX webhook_delivery_ended_idx ON webhook_delivery (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX webhook_delivery_endpoint_id_created_at_id_idx ON webhook_delivery (endpoint_id, created_at, id);

CREATE TABLE webhook_attempt (
    delivery_id text NOT NULL,
    number bigint NOT NULL,
    started_at timestamptz NOT NULL,
    milliseconds bigint NOT NULL,
    status_code integer,
    answer text,
    error text,
    CONSTRAINT webhook_attempt_pkey PRIMARY KEY (delivery_id, number),
    CONSTRAINT webhook_attempt_delivery_id_fkey
        FOREIGN KEY(delivery_id) REFERENCES webhook_delivery (id) ON DELETE CASCADE
);
