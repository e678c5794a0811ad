-- The group stage's job in SQL: see group_peers.py. {folder}, {out} and {k} are filled in.
CREATE TYPE module_name AS ENUM (SELECT DISTINCT module FROM read_parquet('{folder}/invocations.parquet') ORDER BY 1);

CREATE TEMP TABLE rollouts AS
SELECT *, dense_rank() OVER (ORDER BY example_id)::INTEGER AS e,
  row_number() OVER (ORDER BY example_id, rollout_index)::INTEGER AS r
FROM (SELECT example_id, rollout_index, rollout_id, source, policy, reward, status FROM read_parquet('{folder}/rollouts.parquet'));

CREATE TEMP TABLE raw AS
SELECT r.e, r.r, i.call_index, i.module::module_name AS module, i.invocation_index AS p, i.attempt,
  i.parse_status = 'failed' AS failed,
  CAST(CASE WHEN i.parse_status = 'failed' THEN round(1e6 * (-1 + coalesce(i.parsed_share, 0)))
    WHEN i.finish_reason = 'length' THEN 0 WHEN r.status = 'ok' THEN round(1e6 * r.reward) ELSE 0 END AS BIGINT) AS q,
  i.trainable AND i.lm = 'student' AND NOT i.concurrent AND i.finish_reason <> 'context_overflow'
    AND (r.status <> 'ok' OR r.reward IS NOT NULL) AS usable
FROM read_parquet('{folder}/invocations.parquet') i JOIN rollouts r USING (rollout_id);

-- Only retried invocations have an earlier attempt.
CREATE TEMP TABLE retried AS
SELECT r, module, p, max(attempt) AS last, min(CASE WHEN failed THEN attempt END) AS first_failed
FROM raw WHERE (r, module, p) IN (SELECT (r, module, p) FROM raw WHERE attempt > 0) GROUP BY ALL;

CREATE TEMP TABLE calls AS
SELECT raw.*, attempt = coalesce(last, 0) AS final,
  coalesce(attempt < last AND failed AND attempt = first_failed, false) AS early
FROM raw LEFT JOIN retried USING (r, module, p);

CREATE TEMP TABLE lanes AS
SELECT e, module, r, max(p) AS reach, max(call_index) AS source_call
FROM calls WHERE usable AND final GROUP BY ALL;

CREATE TEMP TABLE candidates AS
SELECT e, r, call_index, module, p, attempt, q, early, 0::TINYINT AS copy FROM calls WHERE usable AND (final OR early)
UNION ALL
SELECT c.e, c.r, c.call_index, c.module, unnest(range(l.reach + 1, t.top + 1))::INTEGER AS p, c.attempt, c.q, false, 1
FROM lanes l JOIN (SELECT e, module, max(reach) AS top FROM lanes GROUP BY ALL) t USING (e, module)
JOIN calls c ON c.r = l.r AND c.call_index = l.source_call
WHERE l.reach < t.top;

CREATE TEMP TABLE planned AS
SELECT *, (CASE WHEN high = low THEN extra ELSE least(greatest(
    (({k} + 1) * (high - low) - 2 * (total - n * low)) // (2 * (high - low)), 0), extra) END)::BIGINT AS from_high
FROM (SELECT e, module, p, count(*) AS n, min(q) AS low, max(q) AS high, sum(q)::BIGINT AS total,
    greatest({k} - count(*), 0) AS extra
  FROM candidates WHERE NOT early GROUP BY ALL HAVING count(*) >= 2);

-- Members at either end of a group that gets copies: originals alone where there are any.
CREATE TEMP TABLE pool AS
SELECT *, row_number() OVER (PARTITION BY e, module, p, q ORDER BY r) - 1 AS turn,
  count(*) OVER (PARTITION BY e, module, p, q) AS size
FROM (SELECT c.e, c.module, c.p, c.q, c.r, c.copy, g.extra, g.from_high, g.low, g.high,
    min(c.copy) OVER (PARTITION BY c.e, c.module, c.p, c.q) AS least_copy
  FROM candidates c JOIN planned g USING (e, module, p)
  WHERE g.extra > 0 AND NOT c.early AND (c.q = g.low OR c.q = g.high))
WHERE copy = least_copy;

CREATE TEMP TABLE times AS
SELECT c.*, g.low, g.high, coalesce(t.times, 1) AS times
FROM candidates c JOIN planned g USING (e, module, p)
LEFT JOIN (SELECT e, module, p, r, copy, 1 + greatest(0, ((CASE WHEN q = high THEN from_high ELSE 0 END
      + CASE WHEN q = low THEN extra - from_high ELSE 0 END) - turn + size - 1) // size) AS times FROM pool) t
  ON NOT c.early AND c.e = t.e AND c.module = t.module AND c.p = t.p AND c.r = t.r AND c.copy = t.copy;

CREATE TEMP TABLE moments AS
SELECT e, module, p, sum(times)::BIGINT AS n, sum(times * (q - low))::BIGINT AS s1,
  sum(times * (q - low) * (q - low))::HUGEINT AS s2, max(high) > max(low) AS mixed
FROM times WHERE NOT early GROUP BY ALL;

CREATE TEMP TABLE members AS
SELECT m.*, row_number() OVER (PARTITION BY e, module, p ORDER BY r, early, turn) - 1 AS member_index,
  ((n * (q - low) - s1) / n::DOUBLE) / (sqrt((n * s2 - s1 * s1)::DOUBLE / (n * (n - 1))) + 1e6 * 1e-4) AS advantage
FROM (SELECT *, unnest(range(times::BIGINT)) AS turn FROM times) m JOIN moments USING (e, module, p) WHERE mixed;

COPY (
  SELECT printf('%x', hash(x.example_id, m.module, m.p)) AS group_id, m.member_index::INTEGER AS member_index, x.example_id,
    m.module::VARCHAR AS module, m.p AS invocation_index, x.rollout_id, m.call_index, m.attempt,
    CASE WHEN m.turn > 0 THEN 'select' WHEN m.copy = 1 THEN 'fill' ELSE 'none' END AS copy_kind, x.source, x.policy,
    m.q / 1e6 AS reward, m.advantage, 1.0::DOUBLE AS weight
  FROM members m JOIN rollouts x USING (r) ORDER BY m.e, m.module, m.p, m.member_index
) TO '{out}/groups.parquet' (FORMAT parquet, COMPRESSION zstd);

COPY (
  SELECT x.rollout_id, c.call_index, c.module::VARCHAR AS module, c.p AS invocation_index, c.attempt,
    CASE WHEN NOT c.usable THEN 'unusable' WHEN NOT c.final AND NOT c.early THEN 'earlier_attempt'
      WHEN m.mixed IS NULL THEN 'small_group' ELSE 'flat_group' END AS reason
  FROM calls c LEFT JOIN moments m USING (e, module, p) JOIN rollouts x USING (r)
  WHERE (c.r, c.call_index) NOT IN (SELECT (r, call_index) FROM members)
  ORDER BY c.r, c.call_index
) TO '{out}/excluded.parquet' (FORMAT parquet, COMPRESSION zstd);
