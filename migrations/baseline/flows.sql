CREATE TABLE flow (
    id text NOT NULL,
    tenant_id text NOT NULL,
    recipe text NOT NULL,
    state text NOT NULL,
    reason text,
    lane text,
    api_key_id text,
    idempotency_key text,
    fingerprint text,
    values jsonb,
    created_at timestamptz DEFAULT now() NOT NULL,
    ended_at timestamptz,
    claim_fence bigint DEFAULT '0' NOT NULL,
    claimed_by text,
    claimed_until timestamptz,
    look_at timestamptz,
    num_tries integer DEFAULT '0' NOT NULL,
    for_batch_id text,
    CONSTRAINT flow_pkey PRIMARY KEY (id),
    CONSTRAINT flow_tenant_id_recipe_idempotency_key_key UNIQUE (tenant_id, recipe, idempotency_key),
    CONSTRAINT flow_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenant (id),
    CONSTRAINT flow_for_batch_id_fkey FOREIGN KEY(for_batch_id) REFERENCES batch (id),
    CONSTRAINT flow_state_check CHECK (
        state IN (
            'queued', 'in_progress', 'running', 'cancelling', 'completed', 'succeeded', 'failed', 'cancelled', 'skipped'
        )
    )
) WITH (fillfactor = 70);
CREATE INDEX flow_ended_idx ON flow (recipe, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX flow_for_batch_id_idx ON flow (for_batch_id) WHERE for_batch_id IS NOT NULL;
CREATE INDEX flow_open_idx ON flow (recipe, tenant_id) WHERE ended_at IS NULL;
CREATE INDEX flow_tenant_id_recipe_created_at_id_idx ON flow (tenant_id, recipe, created_at, id);
CREATE UNIQUE INDEX flow_lane_idx ON flow (lane) WHERE state IN ('in_progress', 'running', 'cancelling');

CREATE TABLE flow_node (
    flow_id text NOT NULL,
    number integer NOT NULL,
    recipe text NOT NULL,
    name text NOT NULL,
    batch_id text,
    num_lines bigint NOT NULL,
    begun_at timestamptz DEFAULT now() NOT NULL,
    done_at timestamptz,
    num_seen bigint,
    CONSTRAINT flow_node_pkey PRIMARY KEY (flow_id, number),
    CONSTRAINT flow_node_flow_id_fkey FOREIGN KEY(flow_id) REFERENCES flow (id) ON DELETE CASCADE,
    CONSTRAINT flow_node_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (id)
);
CREATE INDEX flow_node_batch_id_idx ON flow_node (batch_id) WHERE batch_id IS NOT NULL;
