-- What code before noted in some other way, or not at all, is noted as the code does that reads it from now on.

-- By the number that each stage had.
UPDATE extraction_stage SET name = (
    ARRAY['read', 'ask', 'ground', 'ask_again', 'ground_again', 'ask_covered', 'ground_covered']
)[number + 1] WHERE name IS NULL;
UPDATE batch SET run_id = run_step.run_id FROM run_step WHERE run_step.batch_id = batch.id AND batch.run_id IS NULL;
-- Of batches that are under way: nobody asks it of others.
UPDATE batch SET num_computed = (
    SELECT count(*) FROM result
    WHERE batch_day = CAST(batch.created_at AT TIME ZONE 'UTC' AS date) AND batch_id = batch.id
        AND result.input_tokens + result.output_tokens > 0
) WHERE num_computed = 0 AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
UPDATE upload SET filename = '' FROM file
    WHERE file.id = upload.file_id AND file.deleted_at IS NOT NULL AND upload.filename <> '';
UPDATE file SET filename = '' WHERE deleted_at IS NOT NULL AND filename <> '';
UPDATE worker SET running_lines = '{}' WHERE running_lines IS NULL;
UPDATE forecast SET earliest_seconds = coalesce(earliest_seconds, seconds),
    latest_seconds = coalesce(latest_seconds, seconds);
-- Both are measured again at the next look.
DELETE FROM serving_rate WHERE NOT counters ? 'evidence_seconds';
DELETE FROM queue_count;

-- The classes of a batch cost the same where an entry does not say its own.
UPDATE ledger SET priority = batch.priority FROM batch WHERE batch.id = ledger.batch_id AND ledger.priority IS NULL;
-- What its batch counted and no entry says: the first of those that say nothing has it.
UPDATE ledger SET num_truncated = CASE WHEN ledger.id = unsaid.first_id THEN unsaid.num ELSE 0 END
FROM (
    SELECT batch.id AS batch_id, min(entry.id) FILTER (WHERE entry.num_truncated IS NULL) AS first_id,
        greatest(batch.num_truncated - coalesce(sum(entry.num_truncated), 0), 0) AS num
    FROM ledger AS entry JOIN batch ON batch.id = entry.batch_id GROUP BY batch.id
) AS unsaid
WHERE ledger.batch_id = unsaid.batch_id AND ledger.num_truncated IS NULL;
