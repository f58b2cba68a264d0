-- Money in pico-units alone. An entry of `ledger` that was rounded to micro-units had no prices; it gets them, and
-- costs what it cost: its tokens have the average price, but for as many as the division leaves over, which cost a
-- pico-unit more. These are an entry of their own, below zero by id and flush, as plots have counted the first one's.
-- Tokens, results and amounts of both are together what they were, by batch, day and model.

WITH rounded AS (
    SELECT id, CAST(cost_micros AS numeric) * 1000000 + cost_picos AS amount, output_tokens,
        input_tokens - cached_tokens AS uncached_tokens, nullif(input_tokens + output_tokens, 0) AS tokens
    FROM ledger WHERE input_price_micros IS NULL OR output_price_micros IS NULL
), priced AS (
    SELECT id, amount, output_tokens, uncached_tokens, coalesce(div(amount, tokens), 0) AS price,
        coalesce(mod(amount, tokens), 0) AS num_dearer
    FROM rounded
), output_part AS (
    SELECT *, least(num_dearer, output_tokens) AS dearer_output FROM priced
), uncached_part AS (
    SELECT *, least(num_dearer - dearer_output, uncached_tokens) AS dearer_uncached FROM output_part
), parted AS (
    SELECT *, num_dearer - dearer_output - dearer_uncached AS dearer_cached FROM uncached_part
), dearer AS (
    INSERT INTO ledger (
        id, tenant_id, batch_id, chunk_id, fence, flush_no, model, num_results, input_tokens, cached_tokens,
        output_tokens, created_at, cost_picos, input_price_micros, output_price_micros, num_entries, priority,
        num_truncated
    )
    SELECT -ledger.id, tenant_id, batch_id, chunk_id, fence, -1 - flush_no, model, 0, dearer_uncached + dearer_cached,
        dearer_cached, dearer_output, created_at, num_dearer * (price + 1), price + 1, price + 1, 0, priority, 0
    FROM parted JOIN ledger ON ledger.id = parted.id WHERE num_dearer > 0
)
UPDATE ledger SET input_tokens = ledger.input_tokens - dearer_uncached - dearer_cached,
    cached_tokens = ledger.cached_tokens - dearer_cached, output_tokens = ledger.output_tokens - dearer_output,
    cost_micros = 0, cost_picos = amount - num_dearer * (price + 1),
    input_price_micros = price, cached_input_price_micros = NULL, output_price_micros = price
FROM parted WHERE parted.id = ledger.id;
UPDATE ledger SET cost_picos = cost_picos + CAST(cost_micros AS numeric) * 1000000, cost_micros = 0
    WHERE cost_micros <> 0;
UPDATE batch SET cost_picos = cost_picos + CAST(cost_micros AS numeric) * 1000000, cost_micros = 0
    WHERE cost_micros <> 0;
