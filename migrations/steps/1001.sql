-- Lines that leave the house when they are late, adapters, wanted workers, and workers of several models.
-- Each statement may find its work done: a database made before 0.2.0 was released has some of it at revision 1000.

ALTER TABLE tenant ADD COLUMN IF NOT EXISTS may_leave_house boolean DEFAULT 'false' NOT NULL;
ALTER TABLE batch
    ADD COLUMN IF NOT EXISTS adapter text,
    ADD COLUMN IF NOT EXISTS server_model text,
    ADD COLUMN IF NOT EXISTS num_spilled bigint DEFAULT '0' NOT NULL;
ALTER TABLE model
    ADD COLUMN IF NOT EXISTS base text CONSTRAINT model_base_fkey REFERENCES model (name),
    ADD COLUMN IF NOT EXISTS adapter text,
    ADD COLUMN IF NOT EXISTS has_own_prices boolean DEFAULT 'true' NOT NULL;
CREATE INDEX IF NOT EXISTS model_base_idx ON model (base) WHERE base IS NOT NULL;
ALTER TABLE forecast ADD COLUMN IF NOT EXISTS is_late boolean DEFAULT 'false' NOT NULL;
ALTER TABLE ledger ADD COLUMN IF NOT EXISTS spill_picos numeric;
CREATE INDEX IF NOT EXISTS ledger_spill_idx ON ledger (created_at) WHERE spill_picos IS NOT NULL;
ALTER TABLE worker
    ADD COLUMN IF NOT EXISTS spill_budget_picos numeric,
    ADD COLUMN IF NOT EXISTS adapters text[] DEFAULT '{}' NOT NULL,
    ADD COLUMN IF NOT EXISTS may_serve text[] DEFAULT '{}' NOT NULL,
    ADD COLUMN IF NOT EXISTS left_out jsonb DEFAULT '{}' NOT NULL;

CREATE TABLE IF NOT EXISTS spill_day (
    model text NOT NULL,
    day date NOT NULL,
    used_picos numeric DEFAULT '0' NOT NULL,
    CONSTRAINT spill_day_pkey PRIMARY KEY (model, day)
);
ALTER TABLE spill_day DROP COLUMN IF EXISTS needed_picos, DROP COLUMN IF EXISTS needed;

CREATE TABLE IF NOT EXISTS spill_lack (
    chunk_id bigint NOT NULL,
    batch_id text NOT NULL,
    day date NOT NULL,
    fence bigint NOT NULL,
    picos numeric NOT NULL,
    CONSTRAINT spill_lack_pkey PRIMARY KEY (chunk_id)
);
CREATE INDEX IF NOT EXISTS spill_lack_batch_id_day_picos_idx ON spill_lack (batch_id, day, picos);

-- How many workers a model wants: an operator's settings, the work that is due, and the function that KEDA asks.
CREATE TABLE IF NOT EXISTS scaling (
    model text NOT NULL,
    min_workers integer NOT NULL,
    max_workers integer NOT NULL,
    startup_seconds float NOT NULL,
    expected_rate float,
    worker_hour_picos bigint,
    max_hour_picos bigint,
    CONSTRAINT scaling_pkey PRIMARY KEY (model),
    CONSTRAINT scaling_model_fkey FOREIGN KEY(model) REFERENCES model (name) ON DELETE CASCADE,
    CONSTRAINT scaling_workers_check CHECK (min_workers >= 0 AND max_workers >= greatest(min_workers, 1)),
    CONSTRAINT scaling_startup_seconds_check CHECK (startup_seconds >= 1),
    CONSTRAINT scaling_expected_rate_check CHECK (expected_rate > 0),
    CONSTRAINT scaling_cost_check CHECK ((worker_hour_picos IS NULL) = (max_hour_picos IS NULL)
        AND worker_hour_picos > 0 AND max_hour_picos / worker_hour_picos >= greatest(min_workers, 1))
);

CREATE TABLE IF NOT EXISTS due_work (
    model text NOT NULL,
    measured_at timestamptz NOT NULL,
    deadlines float[] NOT NULL,
    due_tokens float[] NOT NULL,
    peak_times float[] NOT NULL,
    peaks integer[] NOT NULL,
    CONSTRAINT due_work_pkey PRIMARY KEY (model)
);

ALTER TABLE due_work ADD COLUMN IF NOT EXISTS class_dues jsonb DEFAULT '{}' NOT NULL;

-- The same rule as jobs/scaling/rule.py; a test compares them on random cases. It runs as the owner of the schema:
-- what it calls is found in pg_catalog alone, and ours is named with its schema. On doubt it raises an error, so that
-- the caller keeps its number. Asking changes nothing.
DO $do$ BEGIN EXECUTE format($sql$
    CREATE OR REPLACE FUNCTION %1$I.tokenmill_wanted_workers(asked text) RETURNS integer
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
    DECLARE
        held_seconds constant float := 300; -- a smaller number is returned only after so long
        trusted_seconds constant float := 300; -- a measurement is trusted for so long
        half_life constant float := 600; -- of evidence for a rate, which counts down to a second of it
        own record;
        due record;
        now_at constant float := extract(epoch FROM now());
        live bigint;
        rate float;
        most float;
        needed float;
    BEGIN
        SELECT scaling.* INTO own
            FROM %1$I.model LEFT JOIN %1$I.scaling ON scaling.model = model.name WHERE model.name = asked;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the model %% does not exist', quote_nullable(asked) USING ERRCODE = 'no_data_found',
                HINT = '`tokenmill models list` shows the models.';
        ELSIF own.model IS NULL THEN
            RAISE EXCEPTION 'the model %% has no settings for scaling', quote_literal(asked)
                USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Set its most workers with `tokenmill models scale`.';
        END IF;
        SELECT extract(epoch FROM measured_at)::float AS measured, deadlines, due_tokens, peak_times, peaks
            INTO due
            FROM %1$I.due_work WHERE due_work.model = asked;
        IF NOT FOUND OR abs(now_at - due.measured) > trusted_seconds THEN
            RAISE EXCEPTION 'the work of the model %% was last measured %%', quote_literal(asked),
                coalesce(round(now_at - due.measured) || ' s ago', 'never')
                USING ERRCODE = 'TM001', -- of our own
                HINT = 'A dispatcher measures it: is one running (`tokenmill dispatch`)?';
        END IF;
        SELECT CASE WHEN (counters->>'evidence_seconds')::float
                * power(0.5, greatest(now_at - extract(epoch FROM measured_at)::float, 0) / half_life) >= 1
                THEN tokens_per_second END
            INTO rate FROM %1$I.serving_rate WHERE serving_rate.model = asked;
        rate := coalesce(rate, own.expected_rate);
        IF rate <= 0 OR rate >= 'Infinity' OR cardinality(due.deadlines) <> cardinality(due.due_tokens)
            OR due.due_tokens[cardinality(due.due_tokens)] NOT BETWEEN 0 AND 1e18
        THEN
            RAISE EXCEPTION 'the measured work of the model %% contradicts itself: %% tokens, %% tokens a second',
                quote_literal(asked), due.due_tokens[cardinality(due.due_tokens)], rate
                USING ERRCODE = 'data_corrupted';
        END IF;
        SELECT count(*) INTO live FROM %1$I.worker
            WHERE worker.model = asked AND stopped_at IS NULL AND draining_at IS NULL AND spill_budget_picos IS NULL
                AND heartbeat_at > now() - interval '15 seconds' AND NOT coalesce(engine_stats ? 'out_reason', false);
        SELECT max(CASE
                WHEN rate IS NULL THEN NULL -- GREATEST ignores it
                WHEN tokens <= live * rate * seconds THEN tokens / (rate * seconds)
                WHEN seconds > own.startup_seconds THEN live + (tokens - live * rate * seconds)
                    / (rate * greatest(seconds - own.startup_seconds, own.startup_seconds))
                ELSE greatest(live, tokens / (rate * own.startup_seconds))
            END) INTO needed
            FROM (
                SELECT tokens, greatest(deadline - now_at - own.startup_seconds, (deadline - now_at) / 2, 1) AS seconds
                FROM unnest(due.deadlines, due.due_tokens) AS one(deadline, tokens)
            ) AS timed;
        most := least(own.max_workers, own.max_hour_picos / own.worker_hour_picos);
        RETURN greatest(
            CASE WHEN needed IS NOT NULL THEN least(ceil(needed), most) END, -- LEAST ignores nulls
            CASE WHEN cardinality(due.deadlines) > 0
                OR EXISTS (
                    SELECT FROM %1$I.input_count WHERE state = 'counting' AND input_count.model IN (
                        SELECT asked UNION ALL SELECT name FROM %1$I.model AS adapter WHERE adapter.base = asked
                    )
                )
                THEN 1 END,
            (SELECT max(least(peak, most)) FROM unnest(due.peak_times, due.peaks) AS held(at, peak)
                WHERE at > now_at - held_seconds),
            own.min_workers
        );
    END
    $function$
$sql$, current_schema()); END $do$;
REVOKE ALL ON FUNCTION tokenmill_wanted_workers(text) FROM PUBLIC;
